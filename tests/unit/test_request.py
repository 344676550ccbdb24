"""What a message may be: its shape, its checks, its route, and what is shown of it."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya.language import detect
from producer import apredict, predict, predict_many, submit_prediction
from producer.errors import InvalidRequest, LayaError, PayloadTooLarge, UnknownCheckpoint
from producer.jsonform import JsonForm, size_of
from producer.limits import Limits
from producer.request import OPTIONS, PredictionRequest, read_batch, read_call, route, shown_options, summary
from producer.request_checks import check, check_batch, check_size
from producer.testing import answering

NAMES = ("english", "multilingual", "papers")
QUESTIONS: dict[str, Any] = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "support"]},
    "angry": {"type": "noul", "instructions": "The customer is angry."},
}


def checked(state: Any = "hello", questions: Any = None, **options: Any) -> PredictionRequest:
    return check(
        read_call((state, QUESTIONS if questions is None else questions), options), JsonForm(Limits(payload=10_000))
    )


def nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


def test_a_call_by_position_and_by_keyword_is_the_same_request() -> None:
    by_position = read_call(("hello", QUESTIONS), {"model": "english"})
    assert by_position == read_call((), {"questions": QUESTIONS, "state": "hello", "model": "english"})


def test_an_option_of_none_is_no_option() -> None:
    assert read_call(("hello", QUESTIONS), {"model": None, "lang": "de"}).options == {"lang": "de"}


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "state and questions missing"),
        (("hello",), {}, "questions missing"),
        (("hello", QUESTIONS, "english"), {}, "not 3 values"),
        (("hello", QUESTIONS), {"state": "hello"}, "state is given twice"),
        (("hello", QUESTIONS), {"modle": "english"}, "unknown option 'modle'"),
        (("hello", QUESTIONS), {"hooks": ["os.system"]}, "unknown option 'hooks'"),
    ],
)
def test_a_call_of_another_shape_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read_call(args, kwargs)
    assert said in str(refusal.value)


def test_an_unknown_option_is_named_beside_the_known_ones() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read_call(("hello", QUESTIONS), {"modle": "english"})
    assert all(option in str(refusal.value) for option in OPTIONS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": 3}, "model must be a text"),
        ({"lang_guess": ["de"]}, "lang_guess must be a text"),
        ({"max_len": 0}, "max_len must be a whole number of tokens"),
        ({"max_len": True}, "max_len must be a whole number of tokens"),
        ({"head_max_len": 1.5}, "head_max_len must be a whole number of tokens"),
        ({"max_len": 10**9}, "max_len must be a whole number of tokens"),
        pytest.param({"max_len": 10**5000}, "max_len must be a whole number of tokens", id="thousands of digits"),
        ({"min_confidence": 1.5}, "min_confidence must be a number"),
        ({"min_confidence": {"choice:12": 0.5}}, "unknown bucket"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        checked(**options)
    assert said in str(refusal.value)


def test_a_refused_question_is_named() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        checked(questions={**QUESTIONS, "mood": {"type": "mood"}})
    assert refusal.value.question == "mood"
    assert str(refusal.value).startswith("question 'mood': ")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "must not be None"),
        ({1, 2}, "the state is not JSON: it holds a value of type set"),
        (b"bytes", "of type bytes"),
        (object(), "of type object"),
        ({"a": [1, {"b": float("nan")}]}, "the state.'a'[1].'b' is not JSON: nan"),
        ([float("inf")], "the state[0] is not JSON"),
        ({(1, 2): "x"}, "a key has the type tuple"),
        ({1: "a", "1": "b"}, "two keys that are one in JSON: '1'"),
        ({True: "a", "true": "b"}, "two keys that are one in JSON: 'true'"),
        (nested(65), "the state is nested more than 64 levels deep, and LAYA_MAX_DEPTH allows no more"),
        ({"__type__": "datetime", "__value__": "2020"}, "mean something else on the queue"),
    ],
)
def test_a_state_that_is_not_json_is_refused_by_the_part(state: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        checked(state)
    assert said in str(refusal.value)


@pytest.mark.parametrize("state", ["\ud800", ["ok", "\udfff"], {"\ud800": 1}, pytest.param(10**5000, id="digits")])
def test_what_utf8_or_json_cannot_write_is_refused(state: Any) -> None:
    with pytest.raises(InvalidRequest):
        check_size(checked(state), 10_000)


def test_a_state_that_holds_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(InvalidRequest, match="levels deep"):
        checked(state)


def test_other_mappings_tuples_and_keys_become_json() -> None:
    state = OrderedDict([("a", (1, 2.5)), (3, None), (True, MappingProxyType({"x": "y"}))])
    assert checked(state).state == {"a": [1, 2.5], "3": None, "true": {"x": "y"}}


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**60), 2**60)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    )
)
def test_pure_json_stays_as_it_is_and_comes_back_equal(value: Any) -> None:
    form = JsonForm(Limits(payload=100_000)).of(value, "the value")
    assert form == value
    assert json.dumps(form) == json.dumps(value)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.binary(max_size=2)
KEYS = st.text(max_size=3) | st.integers(0, 9) | st.none() | st.sampled_from(["__type__", "__value__"])


@given(
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(KEYS, inner, max_size=4)
            | st.lists(inner, max_size=2).map(tuple)
            | st.dictionaries(KEYS, inner, max_size=2).map(OrderedDict)
        ),
        max_leaves=20,
    )
)
def test_the_quick_look_at_a_value_comes_to_what_the_thorough_one_does(value: Any) -> None:
    limits = Limits(payload=30, depth=3, text=8)

    def outcome(look: Any) -> Any:
        try:
            return json.dumps(look())
        except LayaError as error:
            return error.as_entry()

    quick, thorough = JsonForm(limits), JsonForm(limits)
    expected = outcome(lambda: thorough._named(value, "it", 0))
    assert outcome(lambda: quick.of(value, "it")) == expected
    assert quick._characters == thorough._characters
    for _ in range(2):  # found, then known
        again = JsonForm(limits)
        assert outcome(lambda form=again: form.of_repeated(value, "it")) == expected
        assert again._characters == thorough._characters


def test_what_was_plain_within_one_limit_is_looked_at_anew_for_another() -> None:
    questions = {"q": {"type": "noul", "instructions": "Is it so, or is it otherwise?"}}
    assert JsonForm(Limits()).of_repeated(questions, "questions") == questions
    for limits in (Limits(text=20), Limits(depth=1), Limits(payload=30)):
        with pytest.raises(LayaError):
            JsonForm(limits).of_repeated(questions, "questions")


def test_a_text_over_the_limit_is_too_large_before_it_is_encoded() -> None:
    with pytest.raises(PayloadTooLarge) as refusal:
        check(PredictionRequest("x" * 5_000_000, QUESTIONS), JsonForm(Limits(payload=1_000_000)))
    assert (refusal.value.size, refusal.value.limit) == (5_000_000, 1_000_000)


def test_the_limit_counts_bytes_not_characters() -> None:
    request = PredictionRequest("ü" * 600, QUESTIONS)
    with pytest.raises(PayloadTooLarge):
        check_size(check(request, JsonForm(Limits(payload=1_000))), 1_000)


def test_the_size_is_that_of_compact_json_in_utf8() -> None:
    assert size_of({"a": ["ü", 1]}, 100) == len('{"a":["ü",1]}'.encode())


def test_the_caller_s_checkpoint_is_taken_by_alias_too() -> None:
    assert route(checked(model="EN"), NAMES, "multilingual")["model"] == "english"


@pytest.mark.parametrize("options", [{"model": "/etc/passwd"}, {"model": "org/repo"}, {"task": "typed-decisions"}])
def test_only_a_registered_checkpoint_may_be_named(options: dict[str, str]) -> None:
    with pytest.raises(UnknownCheckpoint) as refusal:
        route(checked(**options), NAMES, "multilingual")
    assert refusal.value.known == list(NAMES)


def test_an_unknown_task_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="unknown task 'nonsense'"):
        route(checked(task="nonsense"), NAMES, "multilingual")


def test_a_language_without_its_checkpoint_goes_to_the_default() -> None:
    request = checked("I would like my money back, please, as soon as you can.")
    assert detect(request.state)["is_english"]
    assert route(request, ("multilingual", "papers"), "papers")["model"] == "papers"


def test_a_bad_request_of_a_batch_is_its_error_and_the_others_stay() -> None:
    items = check_batch(
        [{"state": "a", "questions": QUESTIONS}, {"state": None, "questions": QUESTIONS}, 7, {"state": "a"}],
        Limits(payload=10_000),
    )
    assert isinstance(items[0], PredictionRequest)
    assert [type(LayaError.from_entry(item)) for item in items[1:]] == [InvalidRequest] * 3  # type: ignore[arg-type]


def test_a_batch_is_too_large_as_a_whole() -> None:
    with pytest.raises(PayloadTooLarge):
        check_batch([{"state": "a" * 600, "questions": QUESTIONS}] * 2, Limits(payload=1_000))
    with pytest.raises(PayloadTooLarge):
        size_of([{"state": "ü" * 300, "questions": QUESTIONS}] * 2, 1_000)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), (("text",), {}), (({"state": 1},), {}), (([], []), {}), (([],), {"model": "english"})],
)
def test_a_batch_of_another_shape_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_batch(args, kwargs)


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("secret", "(text of 6 characters; team, angry)"),
        (["secret"], "(list of 1; team, angry)"),
        ({"secret": "secret"}, "(mapping of 1; team, angry)"),
        (7, "(int; team, angry)"),
    ],
)
def test_a_summary_says_ids_type_and_size_and_no_text(state: Any, shown: str) -> None:
    assert summary(checked(state)) == shown


def test_a_summary_of_many_questions_is_short() -> None:
    many = {f"{'q' * 100}{number}": QUESTIONS["angry"] for number in range(100)}
    assert len(summary(PredictionRequest("hello", many))) < 500


def test_shown_options_are_those_given() -> None:
    assert shown_options(checked(model="english", min_confidence=0.5)) == "{model='english', min_confidence=0.5}"


NO_IDS = {
    "a UUID": UUID(int=1),
    "a number": 7,
    "bytes": b"id",
    "an empty text": "",
    "a line": "a\nb",
    "half of a surrogate pair": "\ud800",
    "256 characters": "x" * 256,
}


@pytest.mark.parametrize("value", NO_IDS.values(), ids=NO_IDS.keys())
def test_an_id_that_a_worker_would_refuse_is_refused_where_it_is_given(value: Any) -> None:
    with answering(), pytest.raises(InvalidRequest, match="task_id="):
        submit_prediction.apply_async(("a", QUESTIONS), task_id=value)
    with answering(), pytest.raises(InvalidRequest, match="task_id="):
        predict("a", QUESTIONS, task_id=value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, 10**5000, "5", Decimal(5), [5]], ids=type)
def test_a_timeout_is_a_number_of_seconds(value: Any) -> None:
    with answering(), pytest.raises(InvalidRequest, match="timeout="):
        predict("a", QUESTIONS, value)
    with answering(), pytest.raises(InvalidRequest, match="timeout="):
        asyncio.run(apredict("a", QUESTIONS, value))
    with pytest.raises(InvalidRequest, match="timeout="):
        list(predict_many([], timeout=value))
