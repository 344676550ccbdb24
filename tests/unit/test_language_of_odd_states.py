"""No state is too odd, too deep or too large for language detection: any value gives a complete result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laya.language import detect

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.characters(codec=None)
STATES = st.recursive(
    SCALARS | st.binary(max_size=4) | st.just(object()),
    lambda inside: (
        st.lists(inside, max_size=5)
        | st.tuples(inside, inside)
        | st.dictionaries(st.text(max_size=9) | st.integers() | st.none(), inside, max_size=5)
        | st.fixed_dictionaries({"role": inside, "content": inside})
        | st.builds(lambda value: json.dumps(value, default=str), inside)
    ),
    max_leaves=20,
)


@settings(max_examples=400)
@given(STATES)
def test_any_state_gives_a_complete_and_plain_result(state: Any) -> None:
    found = detect(state)
    assert list(found) == list(type(found)() | detect("x"))
    json.dumps(found, ensure_ascii=False, allow_nan=False).encode("utf-8")
    assert not (found["is_english"] and found["language_undecided"])
    assert found["is_english"] == (found["language"] == "en")
    assert found["mixed_segment"] is None or not (found["is_english"] or found["language_undecided"])
    assert all(0 <= part <= 1 for part in [found["non_latin_fraction"], found["diacritic_rate"]])
    assert not found["script_profile"] or abs(sum(found["script_profile"].values()) - 1) < 0.001


@settings(max_examples=300)
@given(st.text(st.sampled_from("aé .\n<>{}[]();=_-@/\\:&#$%'\"0Ж漢👍\ud800\0"), max_size=300))
def test_any_text_is_read(text: str) -> None:
    assert detect(text) == detect([text])


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = "hello there my friend"
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "state",
    [
        nested(10_000, lambda value: [value]),
        nested(10_000, lambda value: {"a": value}),
        "[" * 100_000,
        "[" * 50_000 + "]" * 50_000,
    ],
    ids=["lists", "mappings", "open brackets", "JSON"],
)
def test_deep_nesting_is_read_without_recursion(state: Any) -> None:
    assert detect(state)["mixed_segment"] is None


def test_a_state_that_holds_itself_is_read_to_the_limit() -> None:
    state: dict[str, Any] = {"text": "Where is my order?"}
    state["again"] = [state, state]
    assert detect(state)["is_english"]


@pytest.mark.parametrize("text", ["hello\0there my\0friend", "hello \ud800 there my friend"])
def test_nul_and_lone_surrogates_end_no_text(text: str) -> None:
    assert detect(text)["is_english"]
    assert detect(text + " wo ist mein Paket und die Rechnung")["language"] == "de"
