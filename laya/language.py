"""Whether a state's text is English, another language, or undecided: what routing by language rests on.

Reads the string values of a state. Which checkpoint follows from it is `laya.routing`'s decision.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Final, TypedDict

import eldc

_ENGLISH_MARGIN: Final = 0.10

_init_lock = threading.Lock()


class Detection(TypedDict):
    """What was found in a state's text.

    `script`: the script of most letters; `script_profile`: script to its share of the letters; `language`:
    ISO 639-1 code or None; `mixed_segment`: the start of the part that is not English inside an English state,
    or None; `diacritic_rate`: share of the Latin letters that are not plain a to z.
    """

    script: str
    script_profile: dict[str, float]
    language: str | None
    is_english: bool
    language_undecided: bool
    non_latin_fraction: float
    mixed_segment: str | None
    diacritic_rate: float


def detect(state: Any) -> Detection:
    """Recognise the language of a state's string values. Never raises."""
    text = " ".join(_strings(state, 0))
    letters = [c for c in text if c.isalpha()]
    latin = [c for c in letters if c < "\u0250"]
    non_latin = 1 - len(latin) / len(letters) if letters else 0.0
    language, english, undecided = None, False, len(letters) < 3
    if not undecided:
        result = _scores(text)
        top = next(iter(result), None)
        english = non_latin == 0 and (
            top is None or top == "en" or result[top] - result.get("en", 0) < _ENGLISH_MARGIN
        )
        language = "en" if english else top
    return {
        "script": "latin" if non_latin < 0.5 else "other",
        "script_profile": {"latin": round(1 - non_latin, 4), "other": round(non_latin, 4)},
        "language": language,
        "is_english": english,
        "language_undecided": undecided,
        "non_latin_fraction": round(non_latin, 4),
        "mixed_segment": None,
        "diacritic_rate": round(sum(c > "\x7f" for c in latin) / len(latin), 4) if latin else 0.0,
    }


def _strings(value: Any, depth: int) -> list[str]:
    if isinstance(value, str):
        return [value]
    if depth > 32:
        return []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for item in value for text in _strings(item, depth + 1)]
    return []


def _scores(text: str) -> dict[str, float]:
    _init()
    scores: dict[str, float] = eldc.detect_details(text.encode("utf-8", "ignore").decode()).scores
    return scores


@functools.cache
def _init() -> None:
    with _init_lock:
        eldc.init()
        eldc.set_scores(20)
