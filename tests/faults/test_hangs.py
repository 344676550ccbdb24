"""Work that never returns, and workers that stand still: noticed, told, replaced; nothing else is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from celery.result import AsyncResult

from producer.errors import DeadlineExceeded, PoisonedRequest
from tests.faults.rig import Rig
from tests.integration.conftest import WorkerProcess
from tests.waiting import wait_until
from worker.cli.health import main
from worker.health import STALE_S, Pulse, problems, read_pulses
from worker.watchdog import EXIT_HUNG

EVER = "sleep 600"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("hangs"), visibility=2) as made:
        yield made


@pytest.fixture
def start(rig: Rig) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start(*options: str, **settings: str) -> WorkerProcess:
        started.append(rig.worker("-c", "4", *options, LAYA_HOOKS="tests.faults.stubborn_hooks.Stubborn", **settings))
        return started[-1].start()

    yield start
    for worker in started:
        if worker.process is not None:  # one that hangs does not end when it is asked
            worker.process.kill()
            worker.process.wait()
    rig.broker.client.delete("laya.english", "unacked", "unacked_index")


def pulse(rig: Rig) -> Pulse | None:
    return next(iter(read_pulses(rig.home / "run")), None)


def probe(rig: Rig) -> tuple[int, str]:
    """What `laya-workers health` says."""
    environment = {**os.environ, "LAYA_RUN_DIR": str(rig.home / "run"), "LAYA_BROKER_URL": rig.broker.server.url}
    run = subprocess.run(
        [sys.executable, "-m", "worker.cli", "health"], env=environment, capture_output=True, text=True, timeout=60
    )
    return run.returncode, run.stdout + run.stderr


def complaints(rig: Rig) -> list[str]:
    """What a worker says is wrong with it: `celery -A worker inspect health`."""
    answers = rig.backend.app.control.broadcast("health", reply=True, timeout=0.3) or []
    return [problem for answer in answers for facts in answer.values() for problem in facts["problems"]]


def started(worker: WorkerProcess, count: int) -> Callable[[], bool]:
    return lambda: worker.text().count("received") >= count


def test_a_worker_that_hangs_ends_its_others_are_answered_and_the_one_is_found(
    rig: Rig, start: Callable[..., WorkerProcess]
) -> None:
    settings = {"LAYA_HANG_SECONDS": "5", "LAYA_MAX_DELIVERIES": "2"}
    worker = start(**settings)
    hanging = rig.ask(EVER)
    wait_until(started(worker, 1), what="the one that hangs")
    others = [rig.ask("sleep 3"), rig.ask("quick")]
    wait_until(lambda: all(result.ready() for result in others), what="the others")
    others.append(rig.ask("sleep 4.5"))  # not done when the worker is found to hang, and within its grace
    facts = wait_until(lambda: complaints(rig), what="the worker's own complaint")
    assert f"request {hanging.id} has been worked on" in facts[0]
    assert worker.exit_code() == EXIT_HUNG
    log = worker.text()
    assert f"this worker hangs and ends within 10 s with exit code 70: request {hanging.id} has been worked on" in log
    assert "stubborn_hooks.py" in log  # where it hangs
    waiting: list[AsyncResult] = [hanging, *others]
    deaths = 1
    while not all(result.ready() for result in waiting):
        assert deaths < 4, "it goes on killing"
        worker = start(**settings)
        if deaths == 1:  # the last time it runs alone, and who therefore asks for nothing is not deaf
            wait_until(lambda: (now := pulse(rig)) is not None and (now.working, now.room) == (1, 0), what="no room")
        wait_until(
            lambda worker=worker: all(result.ready() for result in waiting) or worker.process.poll() is not None, 40
        )
        deaths += worker.process is not None and worker.process.poll() == EXIT_HUNG
    assert all("answers" in result.get() for result in others)
    with pytest.raises(PoisonedRequest):
        hanging.get()
    assert deaths == 2
    wait_until(rig.settled, 10, "the acknowledgements")


def test_the_deadline_of_a_hanging_request_is_answered_while_it_hangs(
    rig: Rig, start: Callable[..., WorkerProcess]
) -> None:
    worker = start()
    result = rig.ask("sleep 5", expires=1.5)
    wait_until(started(worker, 1), what="the start")
    with pytest.raises(DeadlineExceeded, match="still worked on"):
        result.get(timeout=4)
    # What it comes to later is no second answer.
    wait_until(rig.settled, 20, "the end of the request")
    with pytest.raises(DeadlineExceeded):
        AsyncResult(result.id, app=rig.backend.app).get(timeout=5)
    # A backend whose clock is an hour behind is told by how much, and harms nobody.
    with pytest.raises(DeadlineExceeded) as behind:
        rig.ask("x", expires=datetime.now(UTC) - timedelta(hours=1)).get(timeout=10)
    assert behind.value.fields.get("late", 3600) >= 3600
    assert worker.process is not None
    assert worker.process.poll() is None


@pytest.fixture
def here(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process probe the rig's workers: on a busy machine another takes seconds to start."""
    monkeypatch.setenv("LAYA_RUN_DIR", str(rig.home / "run"))
    monkeypatch.setenv("LAYA_BROKER_URL", rig.broker.server.url)


@pytest.mark.usefixtures("here")
def test_a_pass_that_never_returns_ends_its_worker_and_another_answers_who_waited_for_the_device(
    rig: Rig, start: Callable[..., WorkerProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    stuck_worker = start(LAYA_HANG_SECONDS="5")
    stuck = rig.ask("a stuck pass", expires=2.0)
    with pytest.raises(DeadlineExceeded):
        stuck.get(timeout=5)
    behind = [rig.ask(f"waits for the device {number}") for number in range(2)]
    wait_until(started(stuck_worker, 3), what="those behind it")
    gone_on = "a forward pass has gone on for"
    wait_until(lambda: main([]) == 1 and gone_on in capsys.readouterr().err, what="a probe that says so")
    assert stuck_worker.exit_code() == EXIT_HUNG
    other = start()
    assert all("answers" in result.get(timeout=20) for result in behind)
    assert "was delivered before" not in other.text()  # nobody suspects them
    wait_until(rig.settled, 10, "the acknowledgements")


def test_a_probe_finds_a_worker_well_then_taking_nothing_then_stopped_then_gone(
    rig: Rig, start: Callable[..., WorkerProcess]
) -> None:
    worker = start()
    rig.predict("warm")
    wait_until(lambda: (found := pulse(rig)) is not None and found.ready, what="a pulse")
    status, said = probe(rig)
    assert (status, "well" in said) == (0, True), said
    blocked = rig.home / "blocked"
    rig.backend.app.control.broadcast("block", arguments={"path": str(blocked)})
    wait_until(blocked.exists, what="the standstill")
    waiting = rig.ask("waits")
    still = wait_until(lambda: (found := pulse(rig)) is not None and found.turned > 2 and found, what="its pulse")
    assert (rig.waiting(), still.room > 0) == (1, True)
    blocked.unlink()
    assert "has not come by" in problems(replace(still, turned=STALE_S + 1), still.at)[0]
    assert "answers" in waiting.get(timeout=20)
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        before = pulse(rig)
        time.sleep(2)
        assert pulse(rig) == before
        assert before is not None
        (problem,) = problems(before, time.time() + STALE_S)
        assert "no pulse" in problem
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    os.kill(worker.pid, signal.SIGKILL)
    worker.exit_code()
    status, said = probe(rig)
    assert (status, "no worker runs here" in said) == (1, True), said


@pytest.mark.usefixtures("here")
def test_a_probe_sees_that_messages_starve_and_not_where_another_worker_takes_them(
    rig: Rig, start: Callable[..., WorkerProcess], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starved_s = 4.0
    monkeypatch.setattr("worker.health.STARVED_S", starved_s)
    start()
    rig.predict("warm")
    assert rig.backend.app.control.broadcast("take_nothing", reply=True, timeout=20, limit=1)
    waiting = rig.ask("waits")
    wait_until(lambda: main([]) == 1, 20, "a probe that fails")
    said = capsys.readouterr().err
    assert "a message has been the oldest of laya.english for" in said
    assert "heard" not in said  # the broker answers it, and it is not that
    start(LAYA_RUN_DIR=str(rig.home / "run of the other"))
    assert "answers" in waiting.get(timeout=20)
    until = time.monotonic() + 1.5 * starved_s
    while time.monotonic() < until:
        rig.predict("more")
        assert main([]) == 0


def test_a_worker_that_is_asked_twice_ends_at_once_and_gives_everything_back(
    rig: Rig, start: Callable[..., WorkerProcess]
) -> None:
    worker = start()
    ids = [rig.ask(EVER).id for _ in range(6)]
    wait_until(started(worker, 4), what="a full pool")
    worker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.text(), what="the first signal's effect")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.exit_code() == 1
    assert rig.waiting() == len(ids)
    assert rig.broker.client.hlen("unacked") == 0
