"""What bad input gets: a typed error at submission, and the same from a worker when a producer skipped the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from producer.errors import InvalidRequest, LayaError, PayloadTooLarge, UnknownCheckpoint
from producer.request import SCHEMA, SCHEMA_HEADER
from tests.integration.conftest import Backend, WorkerProcess

NOUL = {"type": "noul", "instructions": "It is urgent."}
CHOICE = {"type": "choice", "instructions": "Which?", "criteria": ["a", "b"]}
SCORE = {"type": "score", "instructions": "How much?", "criteria": ["low", "high"]}


def _nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


# Every row of what the library refuses, by a question whose id is `bad`.
QUESTIONS: dict[str, Any] = {
    "definition is no mapping": "urgent?",
    "type is missing": {"instructions": "It is urgent."},
    "type is unknown": {**NOUL, "type": "boolean"},
    "instructions are missing": {"type": "noul"},
    "instructions are null": {**NOUL, "instructions": None},
    "instructions are blank": {**NOUL, "instructions": " "},
    "instructions are an empty list": {**NOUL, "instructions": []},
    "instructions are an empty mapping": {**NOUL, "instructions": {}},
    "instructions are a number": {**NOUL, "instructions": 7},
    "choice without criteria": {**CHOICE, "criteria": None},
    "choice with a text for criteria": {**CHOICE, "criteria": "a, b"},
    "choice with empty criteria": {**CHOICE, "criteria": {}},
    "choice with an empty list": {**CHOICE, "criteria": []},
    "choice with a mapping for a label": {**CHOICE, "criteria": ["a", {"b": 1}]},
    "choice with labels that are one key": {**CHOICE, "criteria": [1, True]},
    "choice with a null label": {**CHOICE, "criteria": ["a", None]},
    "choice with a list for a label": {**CHOICE, "criteria": ["a", ["b"]]},
    "choice with one label twice": {**CHOICE, "criteria": [1, 1.0]},
    "score with a mapping for criteria": {**SCORE, "criteria": {"low": 1}},
    "score without criteria": {**SCORE, "criteria": None},
    "score with a text for criteria": {**SCORE, "criteria": "low, high"},
    "score with empty criteria": {**SCORE, "criteria": []},
    "score with a null level": {**SCORE, "criteria": ["low", None]},
    "noul with a list for criteria": {**NOUL, "criteria": ["yes", "no"]},
    "noul with other keys": {**NOUL, "criteria": {"maybe": "perhaps"}},
    "labels on a choice": {**CHOICE, "labels": {"false": "no", "true": "yes"}},
    "labels with one side": {**NOUL, "labels": {"true": "yes"}},
    "labels with a third side": {**NOUL, "labels": {"true": "yes", "false": "no", "maybe": "perhaps"}},
    "labels that are no mapping": {**NOUL, "labels": ["no", "yes"]},
    "labels that are no texts": {**NOUL, "labels": {"false": 0, "true": 1}},
    "labels on a score": {**SCORE, "labels": {"false": "no", "true": "yes"}},
    "labels that are the same": {**NOUL, "labels": {"false": "yes", "true": "yes"}},
    "labels that are blank": {**NOUL, "labels": {"false": " ", "true": "yes"}},
    "order that is no permutation": {**CHOICE, "option_order": [0, 0]},
    "order that is no list": {**CHOICE, "option_order": "ab"},
    "order of another kind": {**CHOICE, "option_order": ["a", "b"]},
    "order beyond the options": {**CHOICE, "option_order": [1, 2]},
    "order of another length": {**CHOICE, "option_order": [0]},
}

# Calls that are wrong otherwise: the arguments, the options, and the error.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[LayaError]]] = {
    "nothing at all": ((), {}, InvalidRequest),
    "no questions": (("hello",), {}, InvalidRequest),
    "too many values": (("hello", {"q": NOUL}, "english"), {}, InvalidRequest),
    "state is null": ((None, {"q": NOUL}), {}, InvalidRequest),
    "questions are a list": (("hello", [NOUL]), {}, InvalidRequest),
    "questions are null": (("hello", None), {}, InvalidRequest),
    "a blank question id": (("hello", {" ": NOUL}), {}, InvalidRequest),
    "an unknown option": (("hello", {"q": NOUL}), {"modle": "english"}, InvalidRequest),
    "a hook": (("hello", {"q": NOUL}), {"hooks": ["os.system"]}, InvalidRequest),
    "an unknown checkpoint": (("hello", {"q": NOUL}), {"model": "nobody"}, UnknownCheckpoint),
    "a path for a checkpoint": (("hello", {"q": NOUL}), {"model": "/etc"}, UnknownCheckpoint),
    "a Hub id for a checkpoint": (("hello", {"q": NOUL}), {"model": "org/model"}, UnknownCheckpoint),
    "an unknown task": (("hello", {"q": NOUL}), {"task": "nonsense"}, InvalidRequest),
    "a budget of nothing": (("hello", {"q": NOUL}), {"max_len": 0}, InvalidRequest),
    "a confidence above one": (("hello", {"q": NOUL}), {"min_confidence": 2}, InvalidRequest),
    "1,001 questions": (("hello", {str(number): NOUL for number in range(1001)}), {}, InvalidRequest),
    "one text of 600,000 characters": ((["x" * 600_000], {"q": NOUL}), {}, PayloadTooLarge),
    "5 MB of text": (("x" * 5_000_000, {"q": NOUL}), {}, PayloadTooLarge),
    "nested too deeply": ((_nested(100), {"q": NOUL}), {}, InvalidRequest),
    "a question nested too deeply": (("hello", {"q": {**NOUL, "instructions": _nested(100)}}), {}, InvalidRequest),
}

# What JSON cannot carry never reaches a worker.
NOT_JSON: dict[str, Any] = {
    "a set": {1, 2},
    "bytes": b"text",
    "an object": object(),
    "not a number": {"score": float("nan")},
    "half a surrogate": "\ud800",
}


@pytest.fixture(scope="module", autouse=True)
def worker(make_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    return make_worker("-c", "4").start()


@pytest.fixture
def waiting(client: redis.Redis) -> Iterator[Callable[[], int]]:
    """How many messages lie in the queues."""
    queues = ["laya", "laya.english", "laya.multilingual", "laya.typed-decisions"]
    return lambda: sum(client.llen(name) for name in queues)


@pytest.fixture(scope="module")
def stranger(backend: Backend) -> Iterator[Celery]:
    """A producer that knows nothing of ours but the task's name and the queue."""
    app = Celery("stranger", set_as_current=False, fixups=[])
    app.conf.update(broker_url=backend.app.settings.broker_url, result_backend=backend.app.settings.results)
    yield app
    app.close()


def sent_by(stranger: Celery, *args: Any, **options: Any) -> Any:
    result = stranger.send_task("laya.submit_prediction", args=args, kwargs=options, queue="laya.english")
    stranger.backend.client.lpush("laya.bell.laya.english", 1)  # a stock producer does not ring, and costs a second
    return result


@pytest.mark.parametrize("case", QUESTIONS)
def test_a_refused_question_is_named_at_submission(case: str, backend: Backend) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        backend.submit_prediction.delay("hello", {"good": NOUL, "bad": QUESTIONS[case]})
    assert refusal.value.question == "bad"
    assert str(refusal.value).startswith("question 'bad': ")


@pytest.mark.parametrize("case", QUESTIONS)
def test_a_refused_question_is_named_by_the_worker_too(case: str, backend: Backend, stranger: Celery) -> None:
    result = sent_by(stranger, "hello", {"good": NOUL, "bad": QUESTIONS[case]})
    with pytest.raises(InvalidRequest) as refusal:
        backend.submit_prediction.AsyncResult(result.id).get(timeout=30)
    assert refusal.value.question == "bad"


@pytest.mark.parametrize("id_", [None, 1.5, True, "", " "])
def test_an_id_that_is_none_is_refused_at_submission(id_: Any, backend: Backend) -> None:
    with pytest.raises(InvalidRequest, match=r"^question "):
        backend.submit_prediction.delay("hello", {id_: NOUL})


@pytest.mark.parametrize("case", CALLS)
def test_a_bad_call_is_refused_at_submission(case: str, backend: Backend, waiting: Callable[[], int]) -> None:
    args, options, kind = CALLS[case]
    with pytest.raises(kind) as refusal:
        backend.submit_prediction.delay(*args, **options)
    assert type(refusal.value) is kind
    assert waiting() == 0


@pytest.mark.parametrize("case", CALLS)
def test_a_bad_call_is_refused_by_the_worker_with_the_same_error(case: str, backend: Backend, stranger: Celery) -> None:
    args, options, kind = CALLS[case]
    result = sent_by(stranger, *args, **options)
    with pytest.raises(kind) as refusal:
        backend.submit_prediction.AsyncResult(result.id).get(timeout=30)
    assert type(refusal.value) is kind


@pytest.mark.parametrize("case", NOT_JSON)
def test_a_state_that_is_not_json_is_refused_at_submission(case: str, backend: Backend) -> None:
    with pytest.raises(InvalidRequest):
        backend.submit_prediction.delay(NOT_JSON[case], {"q": NOUL})


def test_2000_options_are_refused_by_the_question_s_name(backend: Backend) -> None:
    many = {"many": {**CHOICE, "criteria": [f"option {number}" for number in range(2000)]}}
    with pytest.raises(InvalidRequest) as refusal:
        backend.predict("hello", many, model="english")
    assert refusal.value.question == "many"
    assert "max_len" in str(refusal.value)


def test_a_message_of_a_newer_schema_is_refused_with_what_to_do(backend: Backend, stranger: Celery) -> None:
    result = stranger.send_task(
        "laya.submit_prediction",
        args=("hello", {"q": NOUL}),
        queue="laya.english",
        headers={SCHEMA_HEADER: SCHEMA + 1},
    )
    with pytest.raises(InvalidRequest, match="update the workers"):
        backend.submit_prediction.AsyncResult(result.id).get(timeout=30)


def test_a_good_message_of_another_producer_is_answered(backend: Backend, stranger: Celery) -> None:
    result = sent_by(stranger, "hello", {"q": NOUL}, model="english")
    assert set(result.get(timeout=30)["answers"]) == {"q"}


def test_a_batch_that_skipped_the_checks_has_its_errors_in_place(backend: Backend, stranger: Celery) -> None:
    requests = [{"state": "hello", "questions": {"q": NOUL}}, {"state": None}, "x", {"state": "y", "questions": 3}]
    result = stranger.send_task("laya.submit_predictions", args=(requests,), queue="laya.english")
    answers = backend.submit_predictions.AsyncResult(result.id).get(timeout=30)
    assert set(answers[0]["answers"]) == {"q"}
    assert [type(LayaError.from_entry(answer)) for answer in answers[1:]] == [InvalidRequest] * 3


def test_nothing_is_retried_and_the_worker_lives(
    backend: Backend, worker: WorkerProcess, waiting: Callable[[], int], client: redis.Redis
) -> None:
    assert "answers" in backend.predict("hello", {"q": NOUL}, model="english")
    assert worker.process is not None
    assert worker.process.poll() is None
    assert waiting() == 0
    assert "Retry" not in worker.text()
