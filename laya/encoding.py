"""Texts to token ids, and token ids to the sequence of one (state, question) row of a published checkpoint.

`[CLS] "<type> question: <instructions>" [SEP] [MASK] " option 0" [MASK] " option 1" … [SEP] state [SEP]`

Tokenising needs a tokenizer; laying out is a pure function of ids and budgets. Scoring the rows is left to the
model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from laya.questions import Question

OPTION_TOKENS = 48
"""Tokens that an option keeps at most, its mask not counted."""

_INSTRUCTION_ROOM = 16  # tokens of the head that options leave to the instruction, or are all cut
_LEAST_INSTRUCTION = 8  # tokens that an instruction keeps however little room there is
_LEAST_OPTION = 4  # tokens that a cut option keeps however many there are, its mask counted


class SpecialIds(NamedTuple):
    """The ids of the special tokens that a row is built from."""

    cls: int
    sep: int
    mask: int


class TextTokenizer:
    """Texts to ids, without special tokens and without truncation.

    Wraps a Rust tokenizer whose settings are fixed once: one that is changed while another thread uses it fails
    with "Already borrowed". So nothing is ever cut here; budgets are applied to the ids.
    """

    def __init__(self, rust_tokenizer: Any, mask_token: str, special: SpecialIds) -> None:
        """Take over ``rust_tokenizer`` (a ``tokenizers.Tokenizer`` that nobody else changes)."""
        rust_tokenizer.no_truncation()
        rust_tokenizer.no_padding()
        self._rust = rust_tokenizer
        self._mask_token = mask_token
        self.special = special

    def ids(self, text: str) -> list[int]:
        """The token ids of one text."""
        return self.ids_of([text])[0]

    def ids_of(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of several texts."""
        cleaned = [self._clean(text) for text in texts]
        return [one.ids for one in self._rust.encode_batch_fast(cleaned, add_special_tokens=False)]

    def _clean(self, text: str) -> str:
        """A text that cannot pass for an option marker, and that can be written as UTF-8."""
        text = text.replace(self._mask_token, " ")
        try:
            text.encode()
        except UnicodeEncodeError:
            # JSON can carry half of a surrogate pair; pairs are joined and halves become U+FFFD.
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return text


class QuestionTokens(NamedTuple):
    """The ids of a question's texts, uncut, options in the order of the labels and without their masks."""

    instruction: list[int]
    options: list[list[int]]


@dataclass(frozen=True, slots=True)
class Layout:
    """One row laid out.

    ``markers`` holds the position of each option's mask in ``ids``, in the order of the labels. ``dropped``
    counts the state's tokens that found no room. ``options`` is the entry of this question in ``usage``, None
    while the cut options are all different.
    """

    ids: list[int]
    markers: tuple[int, ...]
    dropped: int
    options: dict[str, int] | None


def tokenize_question(tokenizer: TextTokenizer, question: Question) -> QuestionTokens:
    """The ids of a question's texts. They depend on nothing but the question, so that they may be kept."""
    instruction, *options = tokenizer.ids_of(
        [
            f"{question.qtype} question: {question.instructions}",
            *(f" {option}" for option in question.options),
        ]
    )
    return QuestionTokens(instruction, options)


def lay_out(
    question: Question,
    tokens: QuestionTokens,
    state: Sequence[int],
    keeps_end: bool,
    special: SpecialIds,
    max_len: int,
    head_max_len: int,
) -> Layout:
    """Fit a question and a state into ``max_len`` tokens, the question into about ``head_max_len`` of them.

    A state that is too long keeps its end where ``keeps_end``, else its beginning.

    Raises:
        ValueError: the mask of an option finds no room.
    """
    instruction, options = _cut_head(tokens, special.mask, head_max_len)
    order = question.order or range(len(options))
    ids = [special.cls, *instruction, special.sep]
    markers = [0] * len(options)
    for option in order:
        markers[option] = len(ids)
        ids += options[option]
    ids.append(special.sep)
    kept = min(len(state), max(0, max_len - len(ids) - 1))
    ids += state[len(state) - kept :] if keeps_end else state[:kept]
    ids.append(special.sep)
    del ids[max_len:]
    _check_markers(question, markers, max_len, head_max_len)
    return Layout(ids, tuple(markers), len(state) - kept, _indistinct(options))


def usage_of(questions: Sequence[Question], layouts: Sequence[Layout], state_tokens: int) -> dict[str, Any]:
    """The ``usage`` of one state's result, from its rows."""
    cut = [question.id for question, row in zip(questions, layouts, strict=True) if row.dropped]
    usage: dict[str, Any] = {
        "input_tokens": sum(len(row.ids) for row in layouts),
        "output_tokens": 0,
        "state_tokens": state_tokens,
        "state_tokens_dropped": max(row.dropped for row in layouts),
        "truncated": bool(cut),
        "truncated_questions": cut,
    }
    options = {question.id: row.options for question, row in zip(questions, layouts, strict=True) if row.options}
    if options:
        usage["options"] = options
    return usage


def _cut_head(tokens: QuestionTokens, mask: int, head_max_len: int) -> tuple[list[int], list[list[int]]]:
    """The instruction and the options (masks in front) that share a budget of ``head_max_len`` tokens."""
    options = [[mask, *option[:OPTION_TOKENS]] for option in tokens.options]
    room = head_max_len - sum(map(len, options))
    if room < _INSTRUCTION_ROOM:
        longest = max(_LEAST_OPTION, (head_max_len - _INSTRUCTION_ROOM) // len(options))
        options = [option[:longest] for option in options]
        room = head_max_len - sum(map(len, options))
    return tokens.instruction[: max(_LEAST_INSTRUCTION, room)], options


def _check_markers(question: Question, markers: Sequence[int], max_len: int, head_max_len: int) -> None:
    fitting = sum(marker < max_len for marker in markers)
    if fitting < len(markers):
        raise ValueError(
            f"question {question.id!r}: only {fitting} of its {len(markers)} option markers fit into "
            f"max_len={max_len} with head_max_len={head_max_len}: raise max_len, lower head_max_len, "
            f"or give fewer options"
        )


def _indistinct(options: Sequence[Sequence[int]]) -> dict[str, int] | None:
    """What a caller should know where some options read the same to the model."""
    distinct = len({tuple(option) for option in options})
    if distinct == len(options):
        return None
    return {"total": len(options), "distinct": distinct, "tokens_per_option": max(map(len, options))}
