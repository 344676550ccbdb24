"""Placement when something is killed: a holder, the announcements, the server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from laya.simulated import write_checkpoint
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.announcements import Fleet, read
from worker.server import EmbeddedServer

NAMES = ("a", "b")
QUESTIONS = {"yes": {"type": "noul", "instructions": "Is it so?"}}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("checkpoints")
    return ",".join(f"{name}={write_checkpoint(home / name, pass_ms=2, load_s=0.3, device=name)}" for name in NAMES)


@pytest.fixture(scope="module")
def backend(server: EmbeddedServer, checkpoints: str) -> Iterator[Backend]:
    made = Backend(server.url, checkpoints=checkpoints, visibility_timeout=3)
    yield made
    made.close()


@pytest.fixture(scope="module")
def workers(
    server: EmbeddedServer, checkpoints: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[WorkerProcess]]:
    home: Path = tmp_path_factory.mktemp("workers")
    settings = {
        "LAYA_BROKER_URL": server.url,
        "LAYA_CHECKPOINTS": checkpoints,
        "LAYA_MAX_LOADED": "1",
        "LAYA_DWELL": "1",
        "LAYA_VISIBILITY_TIMEOUT": "3",
    }
    made = [WorkerProcess(home / f"worker{number}.log", settings, "-c", "4").launch() for number in range(2)]
    for worker in made:
        worker.until_ready()
    yield made
    for worker in made:
        worker.end()


@pytest.fixture
def fleet(client: redis.Redis) -> Callable[[], Fleet]:
    return lambda: read(client, "laya", NAMES)


def holder(fleet: Fleet, checkpoint: str) -> tuple[str, ...]:
    return next(queue.holders for queue in fleet.queues if queue.checkpoint == checkpoint)


def ask_each(backend: Backend) -> None:
    for name in NAMES:
        assert backend.predict("hi", QUESTIONS, model=name, timeout=30)["routing"]["model"] == name


def test_wiped_announcements_come_back_and_nobody_loads_anew(
    workers: list[WorkerProcess], backend: Backend, client: redis.Redis, fleet: Any
) -> None:
    ask_each(backend)
    wait_until(lambda: all(len(holder(fleet(), name)) == 1 for name in NAMES), what="announcements")
    before = {name: holder(fleet(), name) for name in NAMES}
    kinds = ("holds", "loads", "claim", "demand", "worker")
    keys = [key for kind in kinds for key in client.scan_iter(f"laya.{kind}*")]
    client.delete(*keys)
    ask_each(backend)
    wait_until(lambda: {name: holder(fleet(), name) for name in NAMES} == before, what="the same announcements")


def test_a_restarted_server_hears_it_all_again(
    workers: list[WorkerProcess], backend: Backend, server: EmbeddedServer, fleet: Any, client: redis.Redis
) -> None:
    server.stop()
    server.start()
    wait_until(lambda: _answers(fleet) and all(holder(fleet(), name) for name in NAMES), 30, "announcements")
    ask_each(backend)


def _answers(fleet: Callable[[], Fleet]) -> bool:
    try:
        return bool(fleet().workers)
    except redis.RedisError:
        return False


def test_a_killed_holder_is_forgotten_and_another_takes_over(
    workers: list[WorkerProcess], backend: Backend, fleet: Any
) -> None:
    wait_until(lambda: holder(fleet(), "a"), what="a holder")
    victim = next(worker for worker in workers if holder(fleet(), "a")[0].endswith(f":{worker.pid}"))
    os.kill(victim.pid, signal.SIGKILL)
    sent = [backend.submit_prediction.delay("hi", QUESTIONS, model="a") for _ in range(5)]
    # Its announcements' life, what it had taken, the other's dwell time.
    assert all(result.get(timeout=60)["routing"]["model"] == "a" for result in sent)
    wait_until(lambda: len(fleet().workers) == 1, 15, "the dead worker to be forgotten")
