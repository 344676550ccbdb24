"""What a worker counts: by a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from laya import PredictContext
from producer.shown import Shown
from worker.tally import Tally


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def answer(checkpoint: str) -> dict[str, Any]:
    return {"answers": {}, "routing": {"model": checkpoint}}


ERROR = {"error": {"type": "InvalidRequest", "message": "no", "fields": {}}}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tally(clock: Clock) -> Tally:
    return Tally(clock)


def test_messages_are_in_flight_from_their_begin_to_their_end(tally: Tally) -> None:
    tally.begin("a")
    tally.begin("b")
    assert tally.snapshot().in_flight == 2
    tally.end("a", answer("english"))
    assert tally.snapshot().in_flight == 1


def test_requests_are_counted_by_the_checkpoint_that_answered_and_errors_beside_them(tally: Tally) -> None:
    tally.begin("one")
    tally.end("one", answer("english"))
    tally.begin("many")
    tally.end("many", [answer("english"), ERROR, answer("papers")])
    tally.begin("failed")
    tally.end("failed", None)
    seen = tally.snapshot()
    assert seen.answered == {"english": 2, "papers": 1}
    assert seen.failed == 2


def test_an_end_without_a_begin_counts_nothing(tally: Tally) -> None:
    tally.end("another task", answer("english"))
    assert tally.snapshot().answered == {}


def test_a_rate_is_taken_over_the_last_whole_seconds(tally: Tally, clock: Clock) -> None:
    for second in range(20):
        clock.now = 1000.0 + second
        for number in range(3):
            tally.begin(f"{second} {number}")
            tally.end(f"{second} {number}", answer("english"))
    clock.now = 1020.0
    assert tally.snapshot().rates == {"english": 3.0}
    clock.now = 1040.0
    assert tally.snapshot().rates == {}


def test_a_checkpoint_is_loading_then_there_since_then_gone(tally: Tally, clock: Clock) -> None:
    with tally.loading("english"):
        clock.now += 2
        assert tally.snapshot().loading == {"english": 1000.0}
    context = PredictContext([], {}, model="english")
    tally.on_load(context)
    seen = tally.snapshot()
    assert seen.loading == {}
    assert seen.since == {"english": 1002.0}
    tally.on_evict(context)
    assert tally.snapshot().since == {}


def test_a_failed_load_keeps_the_reason_that_was_known_first_until_one_succeeds(tally: Tally, clock: Clock) -> None:
    def fail() -> None:
        with tally.loading("english"):
            try:
                with tally.loading("english"):
                    clock.now += 1
                    raise FileNotFoundError("no such directory")
            except FileNotFoundError as error:
                clock.now += 1
                raise RuntimeError("could not be loaded") from error

    with pytest.raises(RuntimeError):
        fail()
    seen = tally.snapshot()
    assert seen.loading == {}
    assert (seen.failures["english"].reason, seen.failures["english"].at) == ("no such directory", 1001.0)
    tally.on_load(PredictContext([], {}, model="english"))
    assert tally.snapshot().failures == {}


def test_what_logs_may_show_of_a_result_is_counted_as_the_result(tally: Tally) -> None:
    from celery import signals

    class Task:
        name = "laya.submit_prediction"

    tally.watch({Task.name})
    signals.task_prerun.send(sender=None, task_id="a", task=Task(), args=(), kwargs={})
    signals.task_postrun.send(sender=None, task_id="a", task=Task(), args=(), kwargs={}, retval=Shown(answer("x")))
    assert tally.snapshot().answered == {"x": 1}
