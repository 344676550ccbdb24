"""How English some words in Latin letters are: word lists and n-grams weighed together.

The n-gram detector (eldc) is behind `rank_languages` alone, so that another can take its place. Finding the words
of a text is `laya.tokens`' work, and what follows for a state `laya.language`'s.
"""

from __future__ import annotations

import functools
import importlib.resources
import threading
import unicodedata
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

# Words given to the detector, which reads 1000 bytes anyway.
_RANKED: Final = 200


class Ranking(NamedTuple):
    """What the n-gram detector says: how much a text is like English, and the other language it is most like."""

    english: float
    other: float
    other_language: str | None


class Evidence(NamedTuple):
    """What speaks for and against English in a piece of text: counts of words, and the detector's ranking.

    `english`, `neutral` and `foreign` words are in the word lists, and no word in two of them; `accented` are the
    words that hold a letter other than a to z, English ones apart, so that a foreign word may count as both.
    """

    words: int
    english: int
    neutral: int
    foreign: int
    accented: int
    ranking: Ranking


def gather(words: list[str]) -> Evidence:
    """The evidence in the words of a text, of which the detector reads the first 1000 bytes."""
    lists = _word_lists()
    english = neutral = foreign = accented = 0
    for word in map(str.lower, words):
        if word in lists.english:
            english += 1
            continue
        if word in lists.neutral:
            neutral += 1
        elif word in lists.foreign:
            foreign += 1
        if not word.isascii():
            accented += 1
    return Evidence(len(words), english, neutral, foreign, accented, rank_words(words))


def englishness(evidence: Evidence) -> float:
    """The evidence in one figure: the log-odds of English, 0 where both are as likely.

    A logistic regression over translated interfaces, dialogues and voice commands in 90 languages, with rounded
    weights. Zero for a text without words.
    """
    words = evidence.words
    if not words:
        return 0.0
    ranking = evidence.ranking
    shares = 4.3 * evidence.english + 1.7 * evidence.neutral - 2.2 * evidence.foreign - 4.0 * evidence.accented
    return 7.8 * (ranking.english - ranking.other) + 2.0 * ranking.english + (shares + 3.1) / words - 1.8


def merge(evidence: Sequence[Evidence], words: list[str]) -> Evidence:
    """The evidence of several pieces as that of one text, `words` being the words of all of them."""
    return Evidence(
        words=len(words),
        english=sum(piece.english for piece in evidence),
        neutral=sum(piece.neutral for piece in evidence),
        foreign=sum(piece.foreign for piece in evidence),
        accented=sum(piece.accented for piece in evidence),
        ranking=rank_words(words),
    )


def rank_words(words: list[str]) -> Ranking:
    """The ranking of some words, of which the detector reads the first 1000 bytes."""
    return rank_languages(" ".join(words[:_RANKED]))


def rank_languages(text: str) -> Ranking:
    """How much the text is like English and like the likeliest other language, each in 0 to 1.

    Takes text without NUL (the detector stops there) and without lone surrogates (it refuses them).
    """
    scores: dict[str, float] = _detector().detect_details(text).scores
    english = scores.pop("en", 0.0)
    for language, score in scores.items():
        return Ranking(english, score, language)
    return Ranking(english, 0.0, None)


class _WordLists(NamedTuple):
    english: frozenset[str]
    neutral: frozenset[str]
    foreign: frozenset[str]


@functools.cache
def _word_lists() -> _WordLists:
    english, foreign, international = map(_read_words, ("english.txt", "foreign.txt", "international.txt"))
    neutral = international | (english & foreign)
    # Many people write without accents.
    foreign |= {_without_accents(word) for word in foreign}
    return _WordLists(english - neutral, neutral, frozenset(w for w in foreign - english - neutral if len(w) > 1))


def _read_words(name: str) -> frozenset[str]:
    lines = importlib.resources.files("laya").joinpath("wordlists", name).read_text("utf-8").splitlines()
    words = " ".join(line.partition(": ")[2] or line for line in lines if not line.startswith("#")).lower().split()
    return frozenset(words)


def _without_accents(word: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))


_start_lock: Final = threading.Lock()


@functools.cache
def _detector() -> Any:
    # Starting is not safe from two threads at once; `detect_details` then needs no lock.
    with _start_lock:
        import eldc  # noqa: PLC0415 - whoever never detects never loads its 23 MB

        eldc.init()
        # An instance of our own, so that what another library sets for the whole process does not reach us.
        detector = eldc.instance()
        detector.set_scores(True)
        return detector
