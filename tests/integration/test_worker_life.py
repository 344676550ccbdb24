"""A worker's start, its end, and what it survives in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from producer.errors import CheckpointUnavailable, PredictionFailed
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until

MakeWorker = Callable[..., WorkerProcess]
POOL = 4


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


@pytest.fixture
def run(make_worker: MakeWorker) -> Any:
    """Starts a worker for one test."""
    started: list[WorkerProcess] = []

    def start(*options: str, **settings: str) -> WorkerProcess:
        started.append(make_worker("-c", str(POOL), *options, **settings).start())
        return started[-1]

    yield start
    for worker in started:
        worker.end()


@pytest.mark.parametrize("asked", [("-P", "prefork"), ("-Pprefork",), ("--pool=prefork",), ("--pool", "processes")])
def test_a_pool_that_forks_is_refused_at_start_with_the_reason(asked: tuple[str, ...], make_worker: MakeWorker) -> None:
    worker = make_worker(*asked).launch()
    assert worker.exit_code() == os.EX_CONFIG
    assert "the pool 'prefork' cannot serve checkpoints: CUDA does not survive a fork" in worker.text()
    assert "-P threads" in worker.text()


def test_the_solo_pool_serves(run: Any, backend: Backend, questions: dict[str, Any]) -> None:
    run("-P", "solo")
    assert "answers" in backend.predict("hello", questions, model="english")


@pytest.mark.parametrize(
    ("settings", "said", "code"),
    [
        ({"LAYA_HOOKS": "queue_hooks.Nobody"}, "LAYA_HOOKS: 'queue_hooks.Nobody' cannot be imported", os.EX_CONFIG),
        (
            {"LAYA_HOOKS": "nowhere_hooks.Nobody"},
            "LAYA_HOOKS: 'nowhere_hooks.Nobody' cannot be imported: ModuleNotFoundError: No module named",
            os.EX_CONFIG,
        ),
        (
            {"LAYA_HOOKS": "unhappy_hooks.Unhappy"},
            "LAYA_HOOKS: 'unhappy_hooks.Unhappy' cannot be imported: ValueError: no luck, and a second line",
            os.EX_CONFIG,
        ),
        (
            {"LAYA_HOOKS": "queue_hooks.Broken"},
            "LAYA_HOOKS: queue_hooks.Broken() failed: RuntimeError: no such luck",
            os.EX_CONFIG,
        ),
        ({"LAYA_HOOKS": "nodots"}, "LAYA_HOOKS: 'nodots' is no dotted path", os.EX_CONFIG),
        (
            {"LAYA_CHECKPOINTS": "english=/nowhere", "LAYA_PRELOAD": "english"},
            "checkpoint 'english' could not be loaded",
            1,
        ),
        ({"LAYA_PRELOAD": "nobody"}, "LAYA_PRELOAD: unknown checkpoint 'nobody'", os.EX_CONFIG),
    ],
)
def test_a_worker_that_cannot_serve_ends_at_once_and_says_why(
    settings: dict[str, str], said: str, code: int, make_worker: MakeWorker
) -> None:
    worker = make_worker(**settings).launch()
    assert worker.exit_code(60) == code
    assert said in worker.text()
    assert "Traceback" not in worker.text()
    assert "ready." not in worker.text()


def test_preloaded_checkpoints_are_resident_before_the_first_request(run: Any, journal: Path) -> None:
    run(LAYA_PRELOAD="english,multilingual", LAYA_HOOKS="queue_hooks.Journal", JOURNAL=str(journal))
    assert journal.read_text().splitlines() == ["load english", "load multilingual"]


def test_sigterm_finishes_what_runs_requeues_what_is_reserved_evicts_and_exits_0(
    run: Any, backend: Backend, client: redis.Redis, journal: Path, questions: dict[str, Any]
) -> None:
    worker = run(LAYA_PRELOAD="english", LAYA_HOOKS="queue_hooks.Journal,queue_hooks.Trouble", JOURNAL=str(journal))
    ask = backend.submit_prediction
    # A message whose time has not come is held by the worker, not by the queue.
    results = [ask.apply_async(("later", questions), {"model": "english"}, countdown=5)]
    wait_until(lambda: client.hlen("unacked") == 1, what="a reserved message")
    results += [ask.delay(f"sleep 1.{number:02}", questions, model="english") for number in range(3 * POOL)]
    wait_until(lambda: journal.read_text().count("start") == POOL, what="a full pool")
    assert worker.terminate() == 0
    done = [result.id for result in results if result.ready()]
    assert len(done) == POOL == journal.read_text().count("end ")
    assert journal.read_text().splitlines()[-1] == "evict english"
    assert client.hlen("unacked") == 0
    assert client.llen("laya.english") == len(results) - POOL
    run(LAYA_HOOKS="queue_hooks.Journal,queue_hooks.Trouble", JOURNAL=str(journal))
    assert all("answers" in result.get(timeout=60) for result in results)
    assert journal.read_text().count("start") == len(results)


def test_an_urgent_request_goes_before_one_that_waited_longer(
    run: Any, backend: Backend, journal: Path, questions: dict[str, Any]
) -> None:
    ask = backend.submit_prediction
    results = [
        ask.apply_async((f"priority {priority}", questions), {"model": "english"}, priority=priority)
        for priority in (9, 6, 0, 3)
    ]
    run("-P", "solo", LAYA_HOOKS="queue_hooks.Journal", JOURNAL=str(journal))
    assert all("answers" in result.get(timeout=60) for result in results)
    started = [line for line in journal.read_text().splitlines() if line.startswith("start")]
    assert started == [f"start priority {priority}" for priority in (0, 3, 6, 9)]


def test_what_runs_can_be_inspected_without_its_text(
    worker_in_trouble: WorkerProcess, backend: Backend, questions: dict[str, Any]
) -> None:
    result = backend.submit_prediction.delay("sleep 3", questions, model="english")
    inspect = backend.app.control.inspect(timeout=10, limit=1)

    def running() -> Any:
        return [task for tasks in (inspect.active() or {}).values() for task in tasks]

    (task,) = wait_until(running, what="a running task")
    assert task["args"] == "english (text of 7 characters; team, urgency, angry)"
    assert "sleep" not in str(task)
    result.get(timeout=30)


def test_an_idle_worker_ends_on_sigterm_with_0(run: Any) -> None:
    assert run().terminate() == 0


@pytest.mark.parametrize("error", ["MemoryError", "SystemExit", "KeyboardInterrupt", "RuntimeError"])
def test_a_hook_that_raises_blocks_no_thread_of_the_pool(
    error: str, worker_in_trouble: WorkerProcess, backend: Backend, questions: dict[str, Any]
) -> None:
    failing = [backend.submit_prediction.delay(f"raise {error}", questions, model="english") for _ in range(2 * POOL)]
    for result in failing:
        with pytest.raises(PredictionFailed, match=error) as failure:
            result.get(timeout=30)
        assert failure.value.cause == error
    assert "answers" in backend.predict("hello", questions, model="english")
    assert worker_in_trouble.process is not None
    assert worker_in_trouble.process.poll() is None


@pytest.fixture(scope="module")
def worker_in_trouble(make_worker: MakeWorker) -> WorkerProcess:
    return make_worker("-c", str(POOL), LAYA_HOOKS="queue_hooks.Trouble").start()


def test_a_broken_checkpoint_fails_its_own_requests_only(
    run: Any, golden_checkpoints: dict[str, Path], server: Any, questions: dict[str, Any]
) -> None:
    listed = f"english={golden_checkpoints['english']},papers=/nowhere"
    run("-Q", "laya.papers,laya.english", LAYA_CHECKPOINTS=listed)
    backend = Backend(server.url, checkpoints=listed)
    try:
        with pytest.raises(CheckpointUnavailable, match="papers") as failure:
            backend.predict("hello", questions, model="papers")
        assert failure.value.checkpoint == "papers"
        assert "answers" in backend.predict("hello", questions, model="english")
    finally:
        backend.close()


def test_a_second_sigint_does_not_leave_the_worker_running(run: Any) -> None:
    worker = run()
    os.kill(worker.pid, signal.SIGINT)
    os.kill(worker.pid, signal.SIGINT)
    worker.exit_code()
