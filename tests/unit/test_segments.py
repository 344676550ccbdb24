"""What is read of a state: its strings, their parts, and the words in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya.segments import MAX_PARTS, MAX_VALUES, PART_CHARACTERS, read_strings, split_parts
from laya.tokens import words_of


def test_the_role_of_a_message_is_not_read() -> None:
    state = [{"role": "user", "content": "gdzie"}, {"role": "assistant", "content": "tam"}]
    assert read_strings(state).strings == ["gdzie", "tam"]


def test_the_type_of_a_content_part_is_not_read() -> None:
    state = [{"role": "user", "content": [{"type": "text", "text": "gdzie"}, {"type": "image_url", "url": "x"}]}]
    assert read_strings(state).strings == ["gdzie", "image_url", "x"]


def test_a_field_called_role_that_is_no_message_is_read() -> None:
    assert read_strings({"role": "Kundenberater", "team": "b"}).strings == ["Kundenberater", "b"]


def test_a_state_larger_than_the_limit_is_read_from_both_ends() -> None:
    strings = read_strings([str(number) for number in range(10 * MAX_VALUES)]).strings
    assert (strings[0], strings[-1]) == ("0", str(10 * MAX_VALUES - 1))
    assert len(strings) < 2 * MAX_VALUES


def test_the_parts_of_five_megabytes_are_bounded() -> None:
    text = "".join(f"Line {number} of the log is fine.\n" for number in range(170_000))
    parts = split_parts(text)
    assert len(parts) <= 2 * MAX_PARTS
    assert max(map(len, parts)) <= PART_CHARACTERS


@given(st.lists(st.text("ab .!,é", max_size=400).map(lambda line: line + "\n"), unique=True, max_size=9))
def test_a_text_is_split_without_loss(lines: list[str]) -> None:
    # A part that comes twice is kept once, so each line gets a number.
    text = "".join(f"{number} {line}" for number, line in enumerate(lines))
    parts = split_parts(text)
    assert all(part in text and len(part) <= PART_CHARACTERS for part in parts)
    assert set(text.split()) == set(" ".join(parts).split()) or max(map(len, text.split())) > PART_CHARACTERS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ask alice@example.com or see https://example.com/a?b=c now", ["Ask", "or", "see", "now"]),
        ("in /usr/local/bin and src/main/App.java", ["in", "and"]),
        ("the <b class='x y'>bold</b> &amp; {name} %(count)s", ["the", "bold"]),
        ("user_id is getUserById or CVE-2024-12345", ["is", "or"]),
        ("IPv4-Adresse, 16-minute, l’été don’t", ["Adresse", "minute", "l'été", "don't"]),
        ("e\u0301te\u0301 ﬁne", ["été", "fine"]),
    ],
)
def test_words_are_found_apart_from_what_is_no_language(text: str, words: list[str]) -> None:
    assert words_of(text) == words
