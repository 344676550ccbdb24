"""Values of the skip cache: what is kept of a result comes back exactly, and what answers something else does not."""

from __future__ import annotations

import copy
import json
import zlib
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks import cache_value
from hooks.cache_value import Unusable, pack, read, unpack, write

DIGEST, OTHER = "a" * 64, "b" * 64
QUESTIONS: dict[Any, Any] = {
    "team": {"type": "choice", "instructions": "Which?", "criteria": {"billing": "money", 2: None, True: "yes"}},
    7: {"type": "score", "instructions": "How?", "criteria": ["low", "high"]},
    "angry": {"type": "noul", "instructions": "Angry."},
}
RESULT: dict[str, Any] = {
    "model": "laya-rl-agent",
    "answers": {
        "team": {
            "type": "choice",
            "choice": 2,
            "probabilities": {"billing": 0.1, 2: 0.7, True: 0.2},
            "confidence": 0.1 + 0.2,
            "answer_confidence": 0.7,
            "action": {"act_probability": 0.0},
        },
        7: {
            "type": "score",
            "score": 1e-17,
            "legend": {"0": "low", "1": "high"},
            "probabilities": {"0": 0.25, "1": 0.75},
        },
        "angry": {"type": "noul", "noul": 0.5, "confidence": 0.5},
    },
    "usage": {"input_tokens": 9, "output_tokens": 0, "truncated_questions": ["\ud800", "é"]},
}


def text_of(result: Any, questions: Any = QUESTIONS) -> bytes:
    text = write(result, DIGEST, questions)
    assert text is not None
    return text


def test_a_result_comes_back_with_every_type_order_and_digit() -> None:
    back = read(text_of(RESULT), DIGEST, QUESTIONS)
    assert repr(back) == repr(RESULT)


def test_each_reading_is_a_result_of_its_own() -> None:
    text = text_of(RESULT)
    read(text, DIGEST, QUESTIONS)["answers"].clear()
    assert repr(read(text, DIGEST, QUESTIONS)) == repr(RESULT)


@given(st.floats(allow_nan=False))
@settings(max_examples=200, deadline=None)
def test_floats_are_kept_to_the_last_bit(number: float) -> None:
    result = copy.deepcopy(RESULT)
    result["answers"]["angry"]["noul"] = number
    assert repr(read(text_of(result), DIGEST, QUESTIONS)["answers"]["angry"]["noul"]) == repr(number)


def test_what_belongs_to_the_asking_call_is_not_kept() -> None:
    result = copy.deepcopy(RESULT)
    result["routing"] = {"model": "english"}
    result["answers"]["angry"].update(low_confidence=True, abstention="abstained", abstention_threshold=0.9)
    before = copy.deepcopy(result)
    assert repr(read(text_of(result), DIGEST, QUESTIONS)) == repr(RESULT)
    assert result == before


def without(*path: Any) -> dict[str, Any]:
    result = copy.deepcopy(RESULT)
    inside = result
    for step in path[:-1]:
        inside = inside[step]
    del inside[path[-1]]
    return result


@pytest.mark.parametrize(
    "result",
    [
        [],
        {},
        without("usage"),
        without("answers", "team"),
        without("answers", 7, "legend"),
        without("answers", 7, "probabilities", "1"),
        without("answers", "team", "probabilities", 2),
        {**RESULT, "answers": dict(reversed(RESULT["answers"].items()))},
        {**RESULT, "answers": {**RESULT["answers"], "angry": {"type": "noul", "noul": "yes"}}},
        {**RESULT, "answers": {**RESULT["answers"], "angry": {"type": "score", "score": 1.0}}},
        {**RESULT, "extra": object()},
    ],
)
def test_what_is_no_answer_to_the_questions_is_not_kept(result: Any) -> None:
    if isinstance(result, list):
        result = {"answers": result, "usage": {}}
    assert write(result, DIGEST, QUESTIONS) is None


@pytest.mark.parametrize(
    "questions",
    [
        {},
        {"team": QUESTIONS["team"], 7: QUESTIONS[7]},
        dict(reversed(QUESTIONS.items())),
        {**QUESTIONS, "angry": QUESTIONS[7]},
        {"team": QUESTIONS["team"], "7": QUESTIONS[7], "angry": QUESTIONS["angry"]},
        {**QUESTIONS, 7: {**QUESTIONS[7], "criteria": ["low", "mid", "high"]}},
        {**QUESTIONS, "team": {**QUESTIONS["team"], "criteria": ["billing", 2]}},
        {**QUESTIONS, "team": {**QUESTIONS["team"], "criteria": {"billing": "money", "2": None, True: "yes"}}},
        {**QUESTIONS, "team": {**QUESTIONS["team"], "criteria": {2: None, "billing": "money", True: "yes"}}},
    ],
)
def test_a_value_that_answers_other_questions_is_of_no_use(questions: Any) -> None:
    with pytest.raises(Unusable):
        read(text_of(RESULT), DIGEST, questions)


def test_a_value_of_another_key_is_of_no_use() -> None:
    with pytest.raises(Unusable, match="another key"):
        read(text_of(RESULT), OTHER, QUESTIONS)


def test_a_value_of_another_schema_is_of_no_use() -> None:
    with pytest.raises(Unusable, match="schema"):
        read(b"2" + text_of(RESULT)[1:], DIGEST, QUESTIONS)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_value_is_of_no_use_or_says_the_same(data: st.DataObject) -> None:
    stored = bytearray(pack(text_of(RESULT), data.draw(st.sampled_from([0, 10**6]))))
    at = data.draw(st.integers(0, len(stored) - 1))
    cut = data.draw(st.booleans())
    stored[at:] = b"" if cut else bytes([stored[at] ^ 1, *stored[at + 1 :]])
    try:
        found = read(unpack(bytes(stored)), DIGEST, QUESTIONS)
    except Unusable:
        return
    # One changed digit of a number cannot be noticed; that it answers these questions can.
    assert list(found["answers"]) == list(QUESTIONS)


@pytest.mark.parametrize(
    "garbage", [b"", b"j", b"z", b"zz", b"x1", b"j1 2 3", None, 7, [b"j"], b"z" + zlib.compress(b"x")]
)
def test_garbage_is_of_no_use(garbage: Any) -> None:
    with pytest.raises(Unusable):
        read(unpack(garbage), DIGEST, QUESTIONS)


def test_long_values_are_compressed_and_short_ones_are_not() -> None:
    text = text_of({**RESULT, "note": "x" * 5000})
    assert pack(text, 10**6) == b"j" + text
    assert len(pack(text, 1000)) < len(text) / 4
    assert unpack(pack(text, 1000)) == text


def test_a_value_that_claims_to_become_enormous_is_refused_before_room_is_made() -> None:
    bomb = b"z" + zstandard.ZstdCompressor().compress(b"\0" * (cache_value.MAX_TEXT + 1))
    with pytest.raises(Unusable, match="size"):
        unpack(bomb)


def test_a_value_is_json_that_other_programs_can_read() -> None:
    plain = {"model": "m", "answers": {"angry": RESULT["answers"]["angry"]}, "usage": {"input_tokens": 1}}
    text = text_of(plain, {"angry": QUESTIONS["angry"]})
    schema, digest, form, body = text.split(b" ", 3)
    assert (schema, digest, form) == (b"1", DIGEST.encode(), b"plain")
    assert json.loads(body) == plain
