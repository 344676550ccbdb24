"""Requests that come too late or were called off: answered as such, and never computed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from producer.errors import DeadlineExceeded, PredictionFailed
from tests.faults.deployment import NOUL, Deployment, deployed
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("deadlines"), threads=1) as made:
        yield made


@pytest.fixture
def busy(run: Deployment) -> Any:
    """The worker's only thread is at work for a while."""
    before = len(run.lines("begin"))
    result = run.ask("nap 1.2")
    wait_until(lambda: len(run.lines("begin")) > before, what="a busy worker")
    return result


def test_a_request_that_waits_beyond_its_time_is_answered_so_and_never_begun(run: Deployment, busy: Any) -> None:
    late = run.ask("late", expires=0.3)
    with pytest.raises(DeadlineExceeded):
        late.get(timeout=20)
    assert busy.ready()
    assert "late" not in run.lines("begin")
    wait_until(run.settled, what="the acknowledgements")


def test_predict_ends_in_time_and_what_it_asked_is_never_begun(run: Deployment, busy: Any) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        run.backend.predict("too late", NOUL, timeout=0.3)
    assert time.monotonic() - started < 1.0
    assert not busy.ready()
    busy.get(timeout=20)
    wait_until(run.settled, what="the acknowledgements")
    assert "too late" not in run.lines("begin")


def test_a_deadline_before_a_countdown_ends_is_answered_so(run: Deployment) -> None:
    with pytest.raises(DeadlineExceeded):
        run.ask("counted down", countdown=0.6, expires=0.2).get(timeout=20)
    assert "counted down" not in run.lines("begin")


def test_a_deadline_that_passes_in_a_hook_is_seen_before_the_forward(run: Deployment) -> None:
    with pytest.raises(DeadlineExceeded):
        run.ask("nap 0.6; hooked", expires=0.4).get(timeout=20)
    assert "nap 0.6; hooked" in run.lines("begin")
    assert "nap 0.6; hooked" not in run.lines("end")


def test_a_waiting_request_that_is_revoked_is_never_begun(run: Deployment, busy: Any) -> None:
    off = run.ask("called off")
    off.revoke()
    with pytest.raises(TaskRevokedError):
        off.get(timeout=20)
    assert busy.get(timeout=20)
    assert "called off" not in run.lines("begin")
    wait_until(run.settled, what="the acknowledgements")


def test_predict_of_a_request_that_is_revoked_ends_with_one_of_our_errors(run: Deployment, busy: Any) -> None:
    with ThreadPoolExecutor(1) as callers:
        call = callers.submit(run.backend.predict, "called off too", NOUL, 20)
        message = wait_until(lambda: run.client.lindex("laya.english", 0), what="its message")
        run.backend.app.control.revoke(json.loads(message)["headers"]["id"])
        with pytest.raises(PredictionFailed, match="REVOKED"):
            call.result(timeout=20)
    assert busy.get(timeout=20)
    assert "called off too" not in run.lines("begin")
