"""Letters and their scripts: counted, and found where another one stands."""

from __future__ import annotations

import pytest

from laya.scripts import count_letters, find_other_script, script_of

SCRIPTS = {
    "latin": "azéəạｚﬁª",
    "cyrillic": "жЇ",
    "han": "漢々",
    "hiragana": "か",
    "katakana": "カｶー",
    "hangul": "한",
    "gothic": "𐌰",
    "old italic": "𐌀",
    "canadian syllabics": "ᐃ",
    None: "5µ!ʼ👍",
}


@pytest.mark.parametrize(("script", "letter"), [(name, one) for name, letters in SCRIPTS.items() for one in letters])
def test_the_script_of_a_letter(script: str | None, letter: str) -> None:
    assert script_of(letter) == script


def test_letters_are_counted_alike_in_small_and_in_large() -> None:
    sample = "naïve мир 漢字 "
    small, large = count_letters(sample), count_letters(sample * 50_000)
    assert small.by_script == {"latin": 5, "cyrillic": 3, "han": 2}
    assert {name: round(count / 50_000) for name, count in large.by_script.items()} == small.by_script


@pytest.mark.parametrize("text", ["5 µm", "Ω and α", "paypаl", "naïve “café”", "👍", "x² + π"])
def test_formulas_look_alikes_and_signs_are_no_other_script(text: str) -> None:
    assert find_other_script(text) is None


@pytest.mark.parametrize(("text", "at"), [("a ή b", 2), ("Привет", 0), ("name 王", 5), ("ab α β γδε", 7)])
def test_a_word_in_another_script_is_found_where_it_stands(text: str, at: int) -> None:
    assert find_other_script(text) == at
