"""A checkpoint that a backend knows and no worker serves: its requests are answered with the error, not left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from laya.simulated import write_checkpoint
from producer.errors import UnknownCheckpoint
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.announcements import Fleet, QueueEntry, WorkerEntry
from worker.server import EmbeddedServer
from worker.unserved import SERVED_KEY, unserved

QUESTIONS = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def checkpoints(home: Path) -> str:
    return f"english={write_checkpoint(home / 'english', pass_ms=1)}"


@pytest.fixture(scope="module")
def backend(server: EmbeddedServer, checkpoints: str) -> Iterator[Backend]:
    """One that was told of a checkpoint too many."""
    made = Backend(server.url, checkpoints=f"{checkpoints},papers=/models/papers")
    yield made
    made.close()


@pytest.fixture(scope="module")
def worker(make_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    return make_worker("-c", "2", LAYA_UNSERVED_AFTER="1").start()


def test_a_request_for_it_is_an_unknown_checkpoint_that_names_the_known(
    backend: Backend, worker: WorkerProcess, client: redis.Redis
) -> None:
    one = backend.submit_prediction.delay("hello", QUESTIONS, model="papers")
    many = backend.submit_predictions.delay([{"state": "hello", "questions": QUESTIONS, "model": "papers"}] * 2)
    for task in (one, many):
        with pytest.raises(UnknownCheckpoint, match="no worker serves the checkpoint 'papers'") as caught:
            task.get(timeout=60)
        assert (caught.value.checkpoint, caught.value.known) == ("papers", ["english"])
    assert client.llen("laya.papers") == 0
    wait_until(lambda: client.hlen("unacked") == 0, 20, "the acknowledgements")
    assert backend.predict("hello", QUESTIONS, model="english")["answers"]


def test_a_worker_that_comes_to_serve_it_answers(
    backend: Backend, worker: WorkerProcess, checkpoints: str, home: Path, make_worker: Callable[..., WorkerProcess]
) -> None:
    both = f"{checkpoints},papers={write_checkpoint(home / 'papers', pass_ms=1)}"
    second = make_worker("-c", "2", LAYA_CHECKPOINTS=both).start()

    def announced() -> bool:
        return second.process is not None and "papers" in str(backend.app.control.inspect(timeout=2).active_queues())

    wait_until(announced, 30, "the second worker")
    assert backend.predict("hello", QUESTIONS, model="papers", timeout=30)["routing"]["model"] == "papers"


def queue(name: str, age: float) -> QueueEntry:
    return QueueEntry(name, depth=1, age=age, rate=0.0, holders=(), loaders=(), failed=(), claimed_by=None)


def test_only_what_waits_for_nobody_is_answered() -> None:
    serving = WorkerEntry("w@h/1", "w@h", "h", 1, 0.0, serves=("english", "rare"))
    fleet = Fleet(100.0, (serving,), (queue("rare", 60.0), queue("young", 29.0), queue("papers", 31.0)))
    assert unserved(fleet, (), 30.0) == ["papers"]


def test_what_waits_for_a_worker_that_is_started_again_is_left_to_it() -> None:
    fleet = Fleet(100.0, (), (queue("restarting", 31.0), queue("papers", 31.0)))
    assert unserved(fleet, ["restarting"], 30.0) == ["papers"]


def test_a_worker_notes_what_it_serves(worker: WorkerProcess, client: redis.Redis) -> None:
    wait_until(lambda: client.zscore(SERVED_KEY, "english") is not None, 20, "the note")
