"""What an embedding checkpoint compares: the text of a state, and the texts that stand for each option of a question.

Pure functions of states and questions. An embedding says what a text is about and is poor at negation, so an option is
described by several texts whose vectors are averaged, and a statement is true where the state is near enough to it.
Embedding the texts and comparing the vectors is left to `laya.embedding`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from laya.questions import NOUL_DEFAULTS, Question, state_text

WHOLE, PHRASES, CONTEXT = 1.0, 2.0, 1.0
"""Weights of an option's whole text, of the mean of its phrases, and of the text with the instructions before it.

Measured on routing questions of ten wordings in 18 languages: the phrases of a description ("invoices, charges and
refunds") find more than the description as one text does, and a bare label needs the instructions to say what it is of.
"""

COUNTER = 0.5
"""How much likeness to the false text counts against a statement.

It often names the very thing that it denies ("asks for something else, not for a refund"), so not fully.
"""

_BREAK = re.compile(r"[,;.:/()|\n、，；。؛،।]|\s(?:and|or|und|oder|et|ou|y|o|e)\s")
_NOUL_WORDS = ("false", "true")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One option: the texts that stand for it, each with its weight, and how likeness to them counts.

    The logit is `scale * (gain * likeness + threshold)`, where `threshold` is the checkpoint's for the option that wins
    when nothing speaks for the other, else nothing. An option without texts has likeness 0. `whole` is the
    text that tells this option from the others.
    """

    texts: tuple[tuple[str, float], ...]
    whole: str
    gain: float = 1.0
    by_default: bool = False


def readable(state: object) -> str:
    """The text that is embedded for a state.

    A string as it stands; of anything else its string values, one a line, without the keys, as language detection reads
    a state too, and without the `role` of a turn in a conversation. Where there are none, the state's JSON: keys and
    numbers are better than nothing, but beside text they draw the vector away from what the text is about.

    Raises:
        TypeError: the state is None or holds something that JSON cannot express.
        ValueError: the state holds itself, or is nested too deeply.
    """
    written = state_text(state)
    if isinstance(state, str):
        return state
    return "\n".join(text for text in _strings(state) if text.strip()) or written


def hypotheses(question: Question) -> tuple[Hypothesis, ...]:
    """The hypotheses of a question's options, in the order of its labels."""
    if question.qtype == "noul":
        return _noul(question)
    if question.qtype == "score":
        return tuple(_bare(level, question.instructions) for level in question.legend)
    return tuple(
        _described(option, description) if description else _bare(option, question.instructions)
        for option, description in zip(question.options, question.descriptions, strict=True)
    )


def phrases(text: str) -> list[str]:
    """The parts of an enumeration or of several sentences, in order; the text itself where it has only one."""
    return [part.strip() for part in _BREAK.split(text) if part.strip()] or [text]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        is_turn = "role" in value and "content" in value
        for key, entry in value.items():
            if not (is_turn and key == "role"):
                yield from _strings(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _strings(entry)


def _weighted(text: str, described: str) -> list[tuple[str, float]]:
    """A text, and the phrases of the part of it that describes."""
    parts = phrases(described)
    return [(text, WHOLE), *((part, PHRASES / len(parts)) for part in parts)]


def _described(option: str, description: str) -> Hypothesis:
    return Hypothesis(tuple(_weighted(option, description)), option)


def _bare(text: str, instructions: str) -> Hypothesis:
    """A label or level that only its question explains."""
    in_context = (f"{instructions} {text}", CONTEXT)
    own = _weighted(text, text) if len(phrases(text)) > 1 else [(text, WHOLE)]
    return Hypothesis((*own, in_context), text)


def _noul(question: Question) -> tuple[Hypothesis, Hypothesis]:
    """False and true. Without criteria the instructions are the statement, and nothing stands for its negation."""
    criteria = [
        "" if text == NOUL_DEFAULTS[truth] else text
        for truth, text in zip((False, True), question.descriptions, strict=True)
    ]
    words = [
        "" if option == f"{usual}: {description}" else option.removesuffix(f": {description}")
        for usual, option, description in zip(_NOUL_WORDS, question.options, question.descriptions, strict=True)
    ]
    against, claim = (_criterion(word, text) for word, text in zip(words, criteria, strict=True))
    return (
        Hypothesis(tuple(against), question.options[0], COUNTER, by_default=True),
        Hypothesis((*claim, (question.instructions, CONTEXT)), question.options[1]),
    )


def _criterion(word: str, text: str) -> Sequence[tuple[str, float]]:
    """The texts of a noul's criterion and of the word that a caller gave it."""
    if not text:
        return [(word, WHOLE)] if word else []
    return _weighted(f"{word}: {text}" if word else text, text)
