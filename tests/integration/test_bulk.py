"""A long list of requests as few messages, answered by a real worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from producer.bulk import cut, predict_many
from producer.errors import BrokerUnavailable, DeadlineExceeded, InvalidRequest, LayaError, PayloadTooLarge
from tests.integration.conftest import Backend, WorkerProcess
from worker.server import EmbeddedServer

pytestmark = pytest.mark.filterwarnings("ignore:checkpoint .* temperatures outside:RuntimeWarning")


@pytest.fixture(scope="module")
def worker(make_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    return make_worker("-c", "8").start()


def requests(number: int, questions: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for place in range(number):
        yield {"state": f"request {place}", "questions": questions, "model": "multilingual"}


def test_every_request_gets_its_own_result_and_progress_is_told(
    worker: WorkerProcess, backend: Backend, questions: dict[str, Any]
) -> None:
    told: list[int] = []
    results = dict(
        predict_many(
            requests(150, questions), timeout=60, per_message=16, progress=told.append, task=backend.submit_predictions
        )
    )
    assert sorted(results) == list(range(150))
    assert told[-1] == 150
    assert told == sorted(told)
    for place in (0, 77, 149):
        alone = backend.predict(f"request {place}", questions, model="multilingual")
        assert results[place] == alone


def test_a_bad_request_is_an_error_entry_at_its_place_and_fails_no_other(
    worker: WorkerProcess, backend: Backend, questions: dict[str, Any]
) -> None:
    mixed = list(requests(5, questions))
    mixed[2] = {"state": None, "questions": questions}
    mixed[3] = {"state": "text", "questions": {"team": {"type": "choice"}}}
    results = dict(predict_many(mixed, timeout=60, task=backend.submit_predictions))
    assert [("answers" in results[place]) for place in range(5)] == [True, True, False, False, True]
    assert isinstance(LayaError.from_entry(results[2]), InvalidRequest)
    assert "team" in LayaError.from_entry(results[3]).message


def test_a_request_too_large_for_any_message_is_its_own_error(
    worker: WorkerProcess, backend: Backend, questions: dict[str, Any]
) -> None:
    mixed = list(requests(3, questions))
    mixed[1] = {**mixed[1], "state": "x" * (backend.app.settings.max_payload + 1)}
    results = dict(predict_many(mixed, timeout=60, task=backend.submit_predictions))
    assert [("answers" in results[place]) for place in range(3)] == [True, False, True]
    assert isinstance(LayaError.from_entry(results[1]), PayloadTooLarge)


def test_a_generator_is_read_only_as_far_as_there_is_room(
    worker: WorkerProcess, backend: Backend, questions: dict[str, Any]
) -> None:
    read = []

    def counted() -> Iterator[dict[str, Any]]:
        for place, request in enumerate(requests(1000, questions)):
            read.append(place)
            yield request

    answers = predict_many(counted(), timeout=60, per_message=4, in_flight=2, task=backend.submit_predictions)
    next(answers)
    assert len(read) <= 4 * 3 + 1
    answers.close()  # type: ignore[attr-defined]  # a generator, which the caller leaves early


def test_without_a_worker_the_time_limit_ends_the_wait(checkpoints: str) -> None:
    with EmbeddedServer() as idle:
        lonely = Backend(idle.url, checkpoints=checkpoints)
        answers = predict_many([{"state": "text", "questions": {}}], timeout=0.5, task=lonely.submit_predictions)
        with pytest.raises(DeadlineExceeded, match=r"0\.5 seconds"):
            list(answers)
        lonely.close()


def test_a_broker_that_falls_silent_before_the_messages_are_sent_is_said_so(checkpoints: str) -> None:
    with EmbeddedServer() as mute:
        backend = Backend(mute.url, checkpoints=checkpoints)

        def asked() -> Iterator[dict[str, Any]]:
            # By now its queue is declared on a connection that is open: the pipeline itself meets the silence.
            os.kill(mute.pid, signal.SIGSTOP)
            yield {"state": "text", "questions": {}, "model": "english"}

        backend.submit_predictions.delay([{"state": "text", "questions": {}, "model": "english"}])
        try:
            with pytest.raises(BrokerUnavailable, match="could not be published"):
                list(predict_many(asked(), timeout=5, task=backend.submit_predictions))
        finally:
            os.kill(mute.pid, signal.SIGCONT)
            backend.close()


@pytest.mark.parametrize("limit", ["per_message", "in_flight"])
def test_limits_below_one_are_refused(limit: str, backend: Backend) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        next(predict_many([], task=backend.submit_predictions, **{limit: 0}))  # type: ignore[arg-type]


def test_a_message_is_cut_by_number_and_by_size() -> None:
    long = {"state": "x" * 400}
    assert [len(chunk) for chunk in cut([{"state": "x"}] * 10, 4, 10_000)] == [4, 4, 2]
    assert [len(chunk) for chunk in cut([long] * 5, 4, 1000)] == [2, 2, 1]
    assert [len(chunk) for chunk in cut([{"state": "x" * 5000}, long], 4, 1000)] == [1, 1]
    assert [place for chunk in cut([long] * 5, 4, 1000) for place, _ in chunk] == list(range(5))
