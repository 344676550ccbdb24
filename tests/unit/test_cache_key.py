"""Keys of the skip cache: one difference is another key, no difference is the same key, in whichever process."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hooks import cache_json
from hooks.cache_key import CacheKey, Place, make_key, pattern
from laya.identity import CheckpointIdentity

ROOT = Path(__file__).resolve().parents[2]
PLACE = Place("laya", None, "multilingual")
IDENTITY = CheckpointIdentity("sha256:00", "fp32", "11", 512, 192, ("de",))
STATE = {"subject": "Café", "lines": ["one", "two"], "count": 1}
QUESTIONS: dict[Any, Any] = {
    "team": {"type": "choice", "instructions": "Which?", "criteria": {"billing": "money", "support": "rest"}},
    "angry": {"type": "noul", "instructions": "Angry."},
}


def key(**changes: Any) -> CacheKey | None:
    asked: dict[str, Any] = {"place": PLACE, "identity": IDENTITY, "state": STATE, "questions": QUESTIONS, **changes}
    return make_key(**copy.deepcopy(asked))


def changed(question: str, **fields: Any) -> dict[Any, Any]:
    return {**QUESTIONS, question: {**QUESTIONS[question], **fields}}


ONE_DIFFERENCE: dict[str, dict[str, Any]] = {
    "the deployment": {"place": replace(PLACE, namespace="other")},
    "the tenant": {"place": replace(PLACE, tenant="a")},
    "a tenant by an empty name": {"place": replace(PLACE, tenant="")},
    "a tenant called null": {"place": replace(PLACE, tenant="null")},
    "the files": {"identity": replace(IDENTITY, content="sha256:01")},
    "the precision": {"identity": replace(IDENTITY, dtype="bf16")},
    "the temperatures": {"identity": replace(IDENTITY, calibration="12")},
    "the budget of the call": {"max_len": 511},
    "the head's budget of the call": {"head_max_len": 191},
    "the budget of the checkpoint": {"identity": replace(IDENTITY, max_len=1024)},
    "the head's budget of the checkpoint": {"identity": replace(IDENTITY, head_max_len=100)},
    "a language with temperatures": {"lang": "de"},
    "the order of the state's keys": {"state": dict(reversed(STATE.items()))},
    "the order in a list": {"state": {**STATE, "lines": ["two", "one"]}},
    "an integer as a text": {"state": {**STATE, "count": "1"}},
    "an integer as a float": {"state": {**STATE, "count": 1.0}},
    "an integer as a boolean": {"state": {**STATE, "count": True}},
    "null": {"state": {**STATE, "count": None}},
    "the sign of nothing": {"state": {**STATE, "count": -0.0}},
    "the form of a character": {"state": {**STATE, "subject": "Cafe\u0301"}},
    "a space": {"state": {**STATE, "subject": "Café "}},
    "case": {"state": {**STATE, "subject": "café"}},
    "half a character": {"state": {**STATE, "subject": "Caf\ud800"}},
    "the text of the state's JSON": {"state": json.dumps(STATE)},
    "a key as a number": {"state": {**STATE, 1: "x"}},
    "a key as a text": {"state": {**STATE, "1": "x"}},
    "a key as a boolean": {"state": {**STATE, True: "x"}},
    "a tuple": {"state": {**STATE, "lines": ("one", "two")}},
    "what a tagged list looks like": {"state": ["dict", ["subject", "Café"]]},
    "a question's id": {"questions": {"teams": QUESTIONS["team"], "angry": QUESTIONS["angry"]}},
    "the order of questions": {"questions": dict(reversed(QUESTIONS.items()))},
    "one question less": {"questions": {"team": QUESTIONS["team"]}},
    "instructions": {"questions": changed("team", instructions="Which one?")},
    "a description": {"questions": changed("team", criteria={"billing": "money", "support": None})},
    "a label": {"questions": changed("team", criteria={"billing": "money", "Support": "rest"})},
    "the order of options": {"questions": changed("team", criteria={"support": "rest", "billing": "money"})},
    "a list of labels": {"questions": changed("team", criteria=["billing", "support"])},
    "option_order": {"questions": changed("team", option_order=[1, 0])},
    "labels of a noul": {"questions": changed("angry", labels={"true": "ja", "false": "nein"})},
}


def test_requests_that_differ_in_one_thing_have_different_keys_each() -> None:
    digests = {"none": key(), **{name: key(**changes) for name, changes in ONE_DIFFERENCE.items()}}
    # The deployment's namespace is a part of the name alone.
    found = {name: made.entry for name, made in digests.items() if made is not None}
    assert found.keys() == digests.keys()
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize(
    "same",
    [
        {"max_len": 512},
        {"head_max_len": 192},
        {"lang": "en"},
        {"identity": replace(IDENTITY, max_len=9), "max_len": 512},
        {"state": copy.deepcopy(STATE)},
    ],
)
def test_what_changes_no_answer_changes_no_key(same: dict[str, Any]) -> None:
    assert key(**same) == key()


def test_forms_of_one_language_are_one_key() -> None:
    assert key(lang="de") == key(lang="de-AT") == key(lang="DE_ch.UTF-8")


@pytest.mark.parametrize(
    "strange",
    [
        {"state": {"x": object()}},
        {"state": {"x": {1, 2}}},
        {"state": b"bytes"},
        {"state": {"x": IntEnum("Level", "LOW").LOW}},
        {"state": {(1, 2): "x"}},
        {"state": {"x": 10**5000}},
        {"questions": {"q": {"type": "noul", "instructions": type("Text", (str,), {})("x")}}},
        {"max_len": True},
        {"max_len": "512"},
        {"lang": 7},
    ],
)
def test_what_json_cannot_express_has_no_key(strange: dict[str, Any]) -> None:
    assert key(**strange) is None


def test_a_state_that_holds_itself_or_is_endlessly_deep_has_no_key() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert make_key(PLACE, IDENTITY, loop, QUESTIONS) is None
    assert make_key(PLACE, IDENTITY, deep, QUESTIONS) is None


def test_names_tell_tenant_and_checkpoint_and_no_name_can_pretend_to_be_two() -> None:
    made = key(place=Place("laya", "a:b*", "org/model"))
    assert made is not None
    assert made.entry == f"laya.cache:a%3Ab%2A:org%2Fmodel:{made.digest}"
    assert made.lease == f"laya.cache-lease:a%3Ab%2A:org%2Fmodel:{made.digest}"
    assert pattern("laya", "a:b*") == "laya.cache:a%3Ab%2A:*:*"
    assert pattern("laya", checkpoint="org/model") == "laya.cache:*:org%2Fmodel:*"
    assert pattern("laya", leases=True) == "laya.cache-lease:*:*:*"


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text(max_size=4) | st.integers(0, 3) | st.booleans() | st.none() | st.sampled_from([0.0, 1.0, "1", "true"])
VALUES = st.recursive(
    LEAVES,
    lambda inside: (
        st.lists(inside, max_size=4)
        | st.dictionaries(KEYS, inside, max_size=4)
        | st.lists(inside, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


def exact(value: Any) -> Any:
    """What tells two values apart, types and orders included."""
    if isinstance(value, dict):
        return ("dict", [(exact(each), exact(entry)) for each, entry in value.items()])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [exact(entry) for entry in value])
    return (type(value).__name__, repr(value))


@given(VALUES, VALUES)
@settings(max_examples=300, deadline=None)
def test_two_values_are_one_text_only_if_they_are_the_same(one: Any, other: Any) -> None:
    assert (cache_json.dumps(one) == cache_json.dumps(other)) == (exact(one) == exact(other))


@given(VALUES)
@settings(max_examples=300, deadline=None)
def test_a_text_that_is_known_is_the_one_that_would_be_made(value: Any) -> None:
    for _ in range(2):  # made, then known
        assert cache_json.dumps_repeated(value) == cache_json.dumps(value)


@given(VALUES)
@settings(max_examples=300, deadline=None)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert exact(cache_json.loads(*cache_json.dumps(value))) == exact(value)


def one_change(value: Any, choose: random.Random) -> Any:  # noqa: PLR0911 - one for each kind of value
    """The value with one thing in it changed, however deep."""
    places = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if value_is_list(value) else []
    if places and choose.random() < 0.7:
        place, inside = choose.choice(places)
        changed_inside = one_change(inside, choose)
        if isinstance(value, dict):
            return {each: changed_inside if each is place else entry for each, entry in value.items()}
        return type(value)(changed_inside if at == place else entry for at, entry in places)
    if isinstance(value, dict):
        return dict(list(value.items())[:-1]) if len(value) != 2 else dict(reversed(value.items()))
    if value_is_list(value):
        return [*value, None]
    if isinstance(value, str):
        return value + choose.choice([" ", "\u0301", "\x00", "\ud800"])
    if type(value) is int:
        return choose.choice([float(value) if abs(value) < 2**53 else str(value), str(value), value + 1])
    if isinstance(value, bool):
        return int(value)
    return [value]


def value_is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


@given(VALUES, st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_a_state_with_one_change_has_another_key(state: Any, choose: random.Random) -> None:
    other = one_change(state, choose)
    if exact(other) != exact(state):  # a changed empty dict is an empty dict
        assert key(state=other) != key(state=state)
        assert key(questions={"q": other}) != key(questions={"q": state})


def test_another_process_with_another_hash_seed_finds_the_same_keys() -> None:
    requests = [
        {"state": value, "lang": lang, "max_len": budget}
        for value in (STATE, "text", {"ключ": "значение", "b": [1, 2.5, None, {"x": True}]}, [{"a": "\ud800"}])
        for lang in (None, "de")
        for budget in (None, 77)
    ]
    here = [made and made.entry for made in (key(**request) for request in requests)]
    code = (
        "import sys, json, tests.unit.test_cache_key as t;"
        "print(json.dumps([t.key(**r).entry for r in json.loads(sys.stdin.read())]))"
    )
    for seed in ("1", "4242"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            input=json.dumps(requests),
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout) == here
