"""Whether a state's text is English, in another language, or undecided: what routing by language rests on.

Puts together what `laya.segments` reads of a state, what `laya.scripts` counts and how `laya.latin` weighs each
part. Which checkpoint follows from it is `laya.routing`'s decision.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict

from laya.latin import Evidence, Ranking, englishness, gather, merge, rank_languages
from laya.scripts import LATIN, count_letters, find_other_script
from laya.segments import PART_CHARACTERS, read_strings, split_parts
from laya.tokens import count_code_marks, words_of

ENGLISH_FROM: Final = 1.2
"""Log-odds from which a text counts as English. Above even odds, since the costly mistake is to send another
language to an English checkpoint."""

SURE_OF_ENGLISH: Final = 0.0
"""How far the n-gram detector must prefer English where no word is English alone."""

FOREIGN_BELOW: Final = 0.5
"""Log-odds below which a part counts as another language. Between this and `ENGLISH_FROM` a text is undecided."""

FOREIGN_BELOW_IN_LONG: Final = -1.0
"""The same where more than `LONG` parts are English, since among many parts one is easily mistaken."""

LONG: Final = 8

EXCERPT_CHARACTERS: Final = 80
"""Length of `mixed_segment`."""

# A favourite of the n-gram detector below this says nothing about which language it is.
_RELIABLE_FROM: Final = 0.45

_EMOJI: Final = re.compile("[\u203c-\u3299\U0001f000-\U0001faff]")
_ASCII_RUN: Final = re.compile(r"[\x21-\x7f]+")

# Scripts of one language that the n-gram detector does not know.
_LANGUAGE_OF_SCRIPT: Final = {"khmer": "km", "myanmar": "my", "sinhala": "si", "thaana": "dv", "tibetan": "bo"}


class Detection(TypedDict):
    """What was found in the text of a state.

    `script`: the script of most letters in lower case (`latin`, `cyrillic`, `han`), None without letters.
    `script_profile`: script to its share of the letters. `language`: ISO 639-1 code, None where undecided or not
    recognised. `is_english`: the whole text is English, or code. `language_undecided`: neither English nor another
    language shows. `non_latin_fraction`: share of the letters that are not Latin. `mixed_segment`: the start of
    the first part in another language when other parts are English, else None. `diacritic_rate`: share of the
    Latin letters that are not plain a to z. Shares are rounded to four places.
    """

    script: str | None
    script_profile: dict[str, float]
    language: str | None
    is_english: bool
    language_undecided: bool
    non_latin_fraction: float
    mixed_segment: str | None
    diacritic_rate: float


class _Verdict(NamedTuple):
    kind: Literal["english", "foreign", "undecided"]
    language: str | None = None
    mixed: str | None = None


class _Part(NamedTuple):
    """A line or sentence with its Latin words and what they say; technical code holds no words of a language."""

    text: str
    words: list[str]
    evidence: Evidence
    odds: float
    is_code: bool = False
    is_technical: bool = False


def detect(state: Any) -> Detection:
    """Recognise the language of a state's string values.

    Never raises, whatever the state is. Some 50 microseconds for 200 characters; however long the state is, the
    time is bounded by what `laya.segments` reads (tens of milliseconds) plus one count over its letters.
    """
    reading = read_strings(state)
    text = "\n".join(reading.strings)
    letters = count_letters(text)
    total = sum(letters.by_script.values())
    latin = letters.by_script.get(LATIN, 0)
    parts = [_judge(part) for part in split_parts(text)] if latin else []
    other_at = find_other_script(text) if latin < total else None
    if other_at is not None:
        verdict = _other_script(text, other_at, parts)
    else:
        verdict = _latin_only(parts, has_json=bool(reading.json))
        if verdict.kind == "undecided" and any(map(_is_english_record, reading.json)):
            verdict = _Verdict("english", "en")
    profile = sorted(letters.by_script.items(), key=lambda item: -item[1])
    return {
        "script": profile[0][0] if profile else None,
        "script_profile": {script: round(count / total, 4) for script, count in profile},
        "language": verdict.language,
        "is_english": verdict.kind == "english",
        "language_undecided": verdict.kind == "undecided",
        "non_latin_fraction": round(1 - latin / total, 4) if total else 0.0,
        "mixed_segment": verdict.mixed,
        "diacritic_rate": round(letters.accented / latin, 4) if latin else 0.0,
    }


def _judge(text: str) -> _Part:
    words = words_of(text)
    evidence = gather(words)
    if evidence.accented and evidence.english > 1 and not evidence.foreign:
        # Names with accents stand in English texts as well.
        words = [word for word in words if word.isascii() or word[0].islower()]
        evidence = gather(words)
    part = _Part(text, words, evidence, englishness(evidence))
    return part if _is_english(part) else _mark_code(part)


def _mark_code(part: _Part) -> _Part:
    words, evidence = part.words, part.evidence
    marks = count_code_marks(part.text)
    if 3 * sum(marks) < max(1, len(words)):
        return part
    known = evidence.english + evidence.neutral + sum(1 for word in words if len(word) > 1 and word.isupper())
    reads_english = evidence.english > 0 and 2 * known >= len(words)
    names_only = marks.names > 0 and known >= len(words)
    is_technical = (reads_english or names_only or marks.program > 1) and not _speaks_otherwise(evidence)
    return part._replace(is_code=True, is_technical=is_technical)


def _is_english(part: _Part) -> bool:
    """Likely English, of two words at least, and not only of words that are written alike in many languages."""
    evidence = part.evidence
    if part.odds < ENGLISH_FROM or evidence.words < 2 or _speaks_otherwise(evidence):
        return False
    return evidence.english > 0 or evidence.ranking.english - evidence.ranking.other >= SURE_OF_ENGLISH


def _is_foreign(part: _Part, limit: float) -> bool:
    """In another language by its words, or by its odds when it is neither code nor a name."""
    evidence = part.evidence
    if _speaks_otherwise(evidence):
        return True
    if part.odds >= limit or part.is_code or not part.words:
        return False
    if evidence.words == 1 or part.text.istitle():
        return evidence.foreign == evidence.words and min(map(len, part.words)) > 3
    return evidence.words > 2 or evidence.foreign + evidence.accented > 0 or part.odds < limit - 1


def _is_foreign_in_code(part: _Part, limit: float) -> bool:
    """The same where code stands around: by its words, or as a sentence of some length with one of them."""
    evidence = part.evidence
    if _speaks_otherwise(evidence):
        return True
    strange = evidence.foreign + evidence.accented
    return part.odds < limit and not part.is_code and evidence.words > 2 and strange > 0


def _speaks_otherwise(evidence: Evidence) -> bool:
    """Whether words of another language stand among English ones or in code: several, or one with accents."""
    strange = evidence.foreign + evidence.accented
    return strange > 2 or (strange == 2 and evidence.words < 9)


def _other_script(text: str, at: int, parts: Sequence[_Part]) -> _Verdict:
    """Another script is another language wherever it stands; mixed where there is English beside it."""
    start = max(text.rfind("\n", 0, at) + 1, at - EXCERPT_CHARACTERS // 2)
    excerpt = _excerpt(text[start : at + EXCERPT_CHARACTERS].split("\n", 1)[0])
    sample = _ASCII_RUN.sub(" ", text[at : at + PART_CHARACTERS]).encode("utf-8", "replace").decode().replace("\0", " ")
    language = _language_of(rank_languages(sample))
    if language is None:
        scripts = count_letters(sample).by_script
        language = next((_LANGUAGE_OF_SCRIPT[name] for name in scripts if name in _LANGUAGE_OF_SCRIPT), None)
    return _Verdict("foreign", language, excerpt if any(map(_is_english, parts)) else None)


def _latin_only(parts: Sequence[_Part], *, has_json: bool) -> _Verdict:
    english = [part for part in parts if _is_english(part)]
    # A line of a program may look like anything, and so may a value of a record.
    is_program = has_json or 2 * sum(part.is_code for part in parts) >= max(1, len(parts))
    limit = FOREIGN_BELOW_IN_LONG if is_program or len(english) > LONG else FOREIGN_BELOW
    is_foreign = _is_foreign_in_code if is_program else _is_foreign
    foreign = [part for part in parts if is_foreign(part, limit)]
    if foreign and english:
        return _Verdict("foreign", _language_of(foreign[0].evidence.ranking), _excerpt(foreign[0].text))
    whole = _together(foreign or [part for part in parts if not part.is_code])
    # Without English beside it, what is unlikely to be English need not prove that it is no name.
    if foreign or is_foreign(whole, limit) or (not is_program and len(whole.words) > 1 and whole.odds < limit):
        return _Verdict("foreign", _language_of(whole.evidence.ranking))
    if any(part.is_technical for part in parts):
        return _Verdict("english", "en")
    if _is_english(whole) and not _mostly_emoji(parts, whole):
        return _Verdict("english", "en")
    return _Verdict("undecided")


def _is_english_record(json: str) -> bool:
    """Whether a JSON text, keys included, reads English for the most part: for records whose values say nothing."""
    evidence = gather(words_of(json[:PART_CHARACTERS]))
    return 2 * (evidence.english + evidence.neutral) > evidence.words and not evidence.foreign


def _together(parts: Sequence[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    words = [word for part in parts for word in part.words]
    evidence = merge([part.evidence for part in parts], words)
    return _Part("\n".join(part.text for part in parts), words, evidence, englishness(evidence))


def _mostly_emoji(parts: Sequence[_Part], whole: _Part) -> bool:
    emoji = sum(len(_EMOJI.findall(part.text)) for part in parts if not part.text.isascii())
    return emoji >= len(whole.words)


def _language_of(ranking: Ranking) -> str | None:
    return ranking.other_language if ranking.other >= _RELIABLE_FROM else None


def _excerpt(text: str) -> str:
    # A lone surrogate cannot be sent as UTF-8, and this string travels.
    return text.strip()[:EXCERPT_CHARACTERS].strip().encode("utf-8", "replace").decode()
