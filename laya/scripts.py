"""Which scripts a text is written in: letters counted by script, without knowing any language.

Works for every script of Unicode, since it goes by the characters' names. What a script means for a request is
`laya.language`'s decision.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections import Counter
from typing import Final, NamedTuple

LATIN: Final = "latin"

MAX_COUNTED: Final = 100_000
"""Characters beyond ASCII that are counted one by one; of more, as many are taken at even distances."""

_ASCII: Final = bytes(range(128))
_ASCII_NOT_LETTERS: Final = bytes(c for c in range(128) if not chr(c).isalpha())

# First words of names that are not the name of a script, but a form of a letter of the script named next.
_FORMS: Final = frozenset({"FULLWIDTH", "HALFWIDTH", "SUPERSCRIPT", "SUBSCRIPT", "TURNED"})
# First words that need the second to say which script it is (OLD ITALIC, LINEAR B, ...).
_TWO_WORDS: Final = frozenset({"OLD", "NEW", "LINEAR", "TAI", "CANADIAN", "CAUCASIAN", "MEETEI", "PAHAWH", "KHITAN"})
_RENAMED: Final = {
    "cjk": "han",
    "ideographic": "han",
    "katakana-hiragana": "katakana",
    "feminine": LATIN,  # the ordinal indicators of Spanish and Italian
    "masculine": LATIN,
    "mathematical": LATIN,  # letters of formulas, also used as fancy type
}
# Letters that belong to no script in particular: modifiers, units, signs.
_NO_SCRIPT: Final = frozenset(
    {"modifier", "micro", "ohm", "kelvin", "angstrom", "double-struck", "script", "black-letter", "alef", "information"}
)

_FORMULA: Final = re.compile("[\u0391-\u03a9\u03b1-\u03c9]")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")


@functools.lru_cache(maxsize=8192)
def script_of(letter: str) -> str | None:
    """The script of one letter in lower case (`"latin"`, `"cyrillic"`, `"han"`), or None when it has none."""
    if not letter.isalpha():
        return None
    words = unicodedata.name(letter, "UNKNOWN").split()
    if words[0] in _FORMS and len(words) > 1:
        words = words[1:]
    name = words[0].lower()
    if words[0] in _TWO_WORDS and len(words) > 1:
        name = f"{name} {words[1].lower()}"
    name = _RENAMED.get(name, name)
    return None if name in _NO_SCRIPT else name


class Letters(NamedTuple):
    """The letters of a text: how many of each script, and how many of the Latin ones are not plain a to z."""

    by_script: dict[str, int]
    accented: int


def count_letters(text: str) -> Letters:
    """Count the letters of a text by script. Every letter is read, so a script that occurs once is not missed.

    Costs about a millisecond a megabyte of ASCII. Of more than `MAX_COUNTED` other characters a sample is counted.
    """
    raw = text.encode("utf-8", "replace")
    plain = len(raw.translate(None, _ASCII_NOT_LETTERS))
    rest = raw.translate(None, _ASCII)
    counts: dict[str, int] = {}
    if rest:
        plain -= len(rest)
        for character, count in _count_characters(rest.decode("utf-8", "replace")).items():
            script = script_of(character)
            if script is not None:
                counts[script] = counts.get(script, 0) + count
    accented = counts.get(LATIN, 0)
    if plain:
        counts[LATIN] = plain + accented
    return Letters(counts, accented)


def _count_characters(text: str) -> Counter[str]:
    if len(text) <= MAX_COUNTED:
        return Counter(text)
    # Whole stretches: single characters at even distances could miss the same letters of every repetition.
    times = len(text) // MAX_COUNTED
    length = 1000
    counts = Counter(
        itertools.chain.from_iterable(text[at : at + length] for at in range(0, len(text), times * length))
    )
    for character in counts:
        counts[character] *= times
    # A rare script must be seen too; where one is seen already, that decides and the rest would only cost time.
    if all(script_of(character) in {LATIN, None} for character in counts):
        counts.update(set(text).difference(counts))
    return counts


def find_other_script(text: str) -> int | None:
    """Where in a text the first word in another script than Latin stands, or None.

    Not a word: one or two Greek letters without accent, which formulas and units have in every language, and a
    single Cyrillic letter inside a Latin word, which is a look-alike.
    """
    for run in _NOT_ASCII.finditer(text):
        letters = _FORMULA.sub("", run[0]) if run.end() - run.start() < 3 else run[0]
        others = (letter for letter in letters if script_of(letter) not in {LATIN, None})
        found = list(itertools.islice(others, 2))
        if not found:
            continue
        beside = text[max(0, run.start() - 1) : run.start()] + text[run.end() : run.end() + 1]
        look_alike = len(found) == 1 and script_of(found[0]) == "cyrillic" and any(map(str.isalpha, beside))
        if not look_alike:
            return run.start()
    return None
