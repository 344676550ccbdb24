"""The error tree: what an error says, and that it comes out of the result store as it went in."""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

import pytest

import producer
from laya.questions import parse_questions
from producer import errors
from producer.app import PredictionApp
from producer.errors import LayaError, PayloadTooLarge, PredictionFailed, UnknownCheckpoint
from producer.settings import ProducerSettings

TREE = [LayaError, *LayaError.__subclasses__()]


@pytest.mark.parametrize("kind", TREE)
def test_an_error_without_a_message_says_what_its_docstring_says(kind: type[LayaError]) -> None:
    assert str(kind()) == " ".join(inspect.cleandoc(kind.__doc__ or "").split())


@pytest.mark.parametrize("kind", TREE)
def test_an_error_with_a_message_says_it_and_notes_the_advice(kind: type[LayaError]) -> None:
    error = kind("this went wrong")
    assert str(error) == "this went wrong"
    assert error.__notes__ == [kind.advice()]


@pytest.mark.parametrize("kind", TREE)
def test_message_and_fields_survive_the_result_store(kind: type[LayaError]) -> None:
    store = PredictionApp(ProducerSettings()).backend
    stored = json.loads(json.dumps(store.prepare_exception(kind("it went wrong", {"size": 3, "names": ["a"]}))))
    back = store.exception_to_python(stored)
    assert type(back) is kind
    assert (str(back), back.fields) == ("it went wrong", {"size": 3, "names": ["a"]})


@pytest.mark.parametrize("kind", TREE)
def test_an_error_survives_pickle(kind: type[LayaError]) -> None:
    # Celery pickles an exception to find out whether it may cross a process.
    back = pickle.loads(pickle.dumps(kind("it went wrong", {"size": 3})))
    assert (type(back), str(back), back.fields) == (kind, "it went wrong", {"size": 3})


def test_a_field_that_json_cannot_express_becomes_its_repr() -> None:
    assert LayaError("", {"when": {1}, "ratio": float("nan")}).fields == {"when": "{1}", "ratio": "nan"}


class Closed:
    """A record whose session is closed: it cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("closed")


@pytest.mark.parametrize("value", [Closed(), 10**5000], ids=["a repr that fails", "a number of thousands of digits"])
def test_a_value_that_cannot_be_shown_is_told_by_its_type(value: Any) -> None:
    assert LayaError("", {"found": {value}}).fields == {"found": "a value of type set"}
    with pytest.raises(ValueError, match="not a value of type"):
        parse_questions({"q": {"type": value}})


def test_an_error_in_a_list_of_results_is_the_same_error_again() -> None:
    entry = json.loads(json.dumps(UnknownCheckpoint("no 'x'", {"checkpoint": "x", "known": ["y"]}).as_entry()))
    back = LayaError.from_entry(entry)
    assert isinstance(back, UnknownCheckpoint)
    assert (str(back), back.checkpoint, back.known) == ("no 'x'", "x", ["y"])


def test_an_error_of_a_newer_worker_s_own_kind_is_a_failed_prediction() -> None:
    entry = {"error": {"type": "NotYetInvented", "message": "later", "fields": {}}}
    assert isinstance(LayaError.from_entry(entry), PredictionFailed)


def test_an_error_of_a_newer_worker_may_carry_more_fields() -> None:
    error = PayloadTooLarge("too large", {"size": 2, "limit": 1, "of_tomorrow": True})
    assert (error.size, error.limit) == (2, 1)


def test_every_error_is_a_public_name_of_the_producer() -> None:
    assert {kind.__name__ for kind in TREE} <= set(producer.__all__)
    assert all(getattr(producer, kind.__name__) is getattr(errors, kind.__name__) for kind in TREE)


@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (errors.InvalidRequest, 422, None),
        (errors.UnknownCheckpoint, 422, None),
        (errors.PayloadTooLarge, 413, None),
        (errors.QueueFull, 429, 1),
        (errors.BrokerUnavailable, 503, 1),
        (errors.CheckpointUnavailable, 503, 1),
        (errors.DeadlineExceeded, 504, 1),
        (errors.PredictionFailed, 500, None),
        (errors.PoisonedRequest, 500, None),
    ],
)
def test_each_error_says_what_a_web_backend_answers_with(
    error: type[errors.LayaError], status: int, again: int | None
) -> None:
    assert (error.http_status, error().retry_after) == (status, again)


def test_an_error_may_say_itself_when_to_try_again() -> None:
    assert errors.QueueFull("full", {"retry_after": 6.2}).retry_after == 7
