"""Requests that come too late or were called off: answered as such, and never computed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery.exceptions import TaskRevokedError

from producer.errors import DeadlineExceeded, PredictionFailed
from tests.faults.deployment import NOUL, Deployment, deployed
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("deadlines"), threads=1) as made:
        yield made


class Busy:
    """The worker's only thread is at work until it is let go."""

    def __init__(self, run: Deployment) -> None:
        self._run, self._name = run, f"turn{len(run.lines('begin'))}"
        self._result = run.ask(f"until {self._name}")
        wait_until(lambda: f"until {self._name}" in run.lines("begin"), what="a busy worker")

    def let_go(self) -> None:
        self._run.let_go(self._name)
        assert self._result.get(timeout=20)


@pytest.fixture
def busy(run: Deployment) -> Iterator[Busy]:
    made = Busy(run)
    yield made
    made.let_go()


def knows_as_revoked(run: Deployment, task_id: str) -> bool:
    """Whether the worker has read that a task is called off."""
    return f"flagged as revoked: {task_id}" in run.log()


def test_a_request_that_waits_beyond_its_time_is_answered_so_and_never_begun(run: Deployment, busy: Busy) -> None:
    late = run.ask("late", expires=0.3)
    expired = time.time() + 0.3
    wait_until(lambda: time.time() > expired, what="its deadline")
    busy.let_go()
    with pytest.raises(DeadlineExceeded):
        late.get(timeout=20)
    assert "late" not in run.lines("begin")
    wait_until(run.settled, what="the acknowledgements")


def test_predict_ends_in_time_and_what_it_asked_is_never_begun(run: Deployment, busy: Busy) -> None:
    with pytest.raises(DeadlineExceeded):
        run.backend.predict("too late", NOUL, timeout=0.3)
    busy.let_go()
    wait_until(run.settled, what="the acknowledgements")
    assert "too late" not in run.lines("begin")


def test_a_deadline_before_a_countdown_ends_is_answered_so(run: Deployment) -> None:
    with pytest.raises(DeadlineExceeded):
        run.ask("counted down", countdown=0.6, expires=0.2).get(timeout=20)
    assert "counted down" not in run.lines("begin")


def test_a_deadline_that_passes_in_a_hook_is_seen_before_the_forward(run: Deployment) -> None:
    with pytest.raises(DeadlineExceeded):
        run.ask("nap 2.5; hooked", expires=2).get(timeout=20)
    assert "nap 2.5; hooked" in run.lines("begin")
    assert "nap 2.5; hooked" not in run.lines("end")


def test_a_waiting_request_that_is_revoked_is_never_begun(run: Deployment, busy: Busy) -> None:
    off = run.ask("called off")
    off.revoke()
    wait_until(lambda: knows_as_revoked(run, off.id), what="the word that it is called off")
    busy.let_go()
    with pytest.raises(TaskRevokedError):
        off.get(timeout=20)
    assert "called off" not in run.lines("begin")
    wait_until(run.settled, what="the acknowledgements")


def test_predict_of_a_request_that_is_revoked_ends_with_one_of_our_errors(run: Deployment, busy: Busy) -> None:
    with ThreadPoolExecutor(1) as callers:
        call = callers.submit(run.backend.predict, "called off too", NOUL, 20)
        message = wait_until(lambda: run.client.lindex("laya.english", 0), what="its message")
        task_id = json.loads(message)["headers"]["id"]
        run.backend.app.control.revoke(task_id)
        wait_until(lambda: knows_as_revoked(run, task_id), what="the word that it is called off")
        busy.let_go()
        with pytest.raises(PredictionFailed, match="REVOKED"):
            call.result(timeout=20)
    assert "called off too" not in run.lines("begin")
