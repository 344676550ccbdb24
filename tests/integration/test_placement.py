"""Real workers that share checkpoints out among themselves, whose loads and passes are simulated."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from laya.simulated import write_checkpoint
from producer.errors import CheckpointUnavailable
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.announcements import Fleet, Keys, read

NAMES = ("a", "b", "c")
LOAD_S = 0.3
DWELL_S = 1.5
HOT = 800
QUESTIONS = {"yes": {"type": "noul", "instructions": "Is it so?"}}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("checkpoints")
    made = {name: write_checkpoint(home / name, pass_ms=2, load_s=LOAD_S, device=name) for name in NAMES}
    return ",".join(f"{name}={path}" for name, path in made.items())


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "journal"
    path.touch()
    return path


@pytest.fixture(scope="module")
def workers(make_worker: Callable[..., WorkerProcess], journal: Path) -> list[WorkerProcess]:
    """Three workers with room for one checkpoint each."""
    made = [
        make_worker(
            *("-c", "8"),
            LAYA_MAX_LOADED="1",
            LAYA_DWELL=str(DWELL_S),
            LAYA_HOOKS="queue_hooks.Journal,queue_hooks.Redirect,queue_hooks.Trouble",
            JOURNAL=str(journal),
        ).launch()
        for _ in range(3)
    ]
    return [worker.until_ready() for worker in made]


@pytest.fixture
def fleet(client: redis.Redis) -> Callable[[], Fleet]:
    return lambda: read(client, "laya", NAMES)


@pytest.fixture
def loads(journal: Path) -> Callable[[], Counter[str]]:
    """How often each checkpoint was loaded since the test's start."""
    before = len(journal.read_text().splitlines())
    return lambda: Counter(
        line.removeprefix("load ") for line in journal.read_text().splitlines()[before:] if line.startswith("load ")
    )


def holders(fleet: Fleet) -> dict[str, int]:
    return {queue.checkpoint: len(queue.holders) for queue in fleet.queues}


def test_three_workers_take_a_checkpoint_each_and_load_it_once(
    workers: list[WorkerProcess], backend: Backend, fleet: Any, loads: Any
) -> None:
    wait_until(lambda: all(queue.claimed_by for queue in fleet().queues), what="claims of what nobody holds")
    calls = [name for _ in range(60) for name in NAMES]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda name: backend.predict("hi", QUESTIONS, model=name), calls))
    assert [answer["routing"]["model"] for answer in answers] == calls
    assert loads() == {"a": 1, "b": 1, "c": 1}
    wait_until(lambda: holders(fleet()) == {"a": 1, "b": 1, "c": 1}, what="announcements")
    assert len({holder for queue in fleet().queues for holder in queue.holders}) == 3


def test_every_key_of_placement_is_in_the_namespace_and_expires(
    workers: list[WorkerProcess], client: redis.Redis
) -> None:
    ours = ("laya.holds.", "laya.loads.", "laya.fails.", "laya.claim.", "laya.demand.", "laya.worker")
    keys = [key for key in client.scan_iter("laya*") if key.decode().startswith(ours)]
    assert any(key.startswith(b"laya.holds.") for key in keys)
    assert all(client.pttl(key) != -1 for key in keys)


def test_a_worker_says_what_it_is_and_holds(workers: list[WorkerProcess], fleet: Any) -> None:
    entries = wait_until(lambda: [one for one in fleet().workers if one.holds], what="entries")
    for entry in entries:
        assert entry.pid in {worker.pid for worker in workers}
        assert entry.serves == NAMES
        assert set(entry.holds) <= set(entry.reads)
        assert all(0 <= time.time() - since < 600 for since in entry.holds.values())


def test_a_request_that_a_hook_sends_elsewhere_is_answered_there_once_and_under_its_id(
    workers: list[WorkerProcess], backend: Backend, journal: Path, loads: Any
) -> None:
    before = len(journal.read_text().splitlines())
    sent = backend.submit_prediction.apply_async(("to b", QUESTIONS), {"model": "a"}, priority=3, expires=60)
    answer = sent.get(timeout=20)
    assert answer["routing"]["model"] == "b"
    lines = journal.read_text().splitlines()[before:]
    assert lines.count("start to b") == lines.count("end to b") == 1
    assert loads() == {}
    handed = [worker for worker in workers if f"[{sent.id}]" in worker.text()]
    assert len(handed) == 2  # the one that read the queue of `a`, and the one that holds `b`


def test_what_one_worker_leaves_another_takes_over(
    workers: list[WorkerProcess], backend: Backend, fleet: Any, loads: Any
) -> None:
    """The worker that ends takes its announcements back; those that stay take turns."""
    leaving = workers[0]
    assert leaving.terminate() == 0
    assert not any(entry.pid == leaving.pid for entry in fleet().workers)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: backend.predict("hi", QUESTIONS, model=name), NAMES * 2))
    assert 1 <= sum(loads().values()) <= 4
    leaving.start()


def test_one_hot_checkpoint_comes_to_be_served_by_all_three_workers(
    workers: list[WorkerProcess], backend: Backend, fleet: Any, loads: Any
) -> None:
    """One worker would take ten seconds: the others leave what nobody asks for, and help."""
    wait_until(lambda: len(fleet().workers) == 3, what="three workers")
    answered = [worker.text().count(" succeeded in ") for worker in workers]
    sent = [backend.submit_prediction.delay("sleep 0.1", QUESTIONS, model="a") for _ in range(HOT)]
    wait_until(lambda: holders(fleet())["a"] == 3, what="all three to hold it")
    assert [result.get(timeout=30)["routing"]["model"] for result in sent] == ["a"] * HOT
    helped = [worker.text().count(" succeeded in ") - count for worker, count in zip(workers, answered, strict=True)]
    assert min(helped) > HOT / 20
    assert loads()["a"] <= 3


def test_two_checkpoints_in_the_room_of_one_take_turns_no_faster_than_their_dwell_time(
    workers: list[WorkerProcess], backend: Backend, fleet: Any, loads: Any
) -> None:
    workers[1].terminate()
    workers[2].terminate()
    started = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: [backend.predict("hi", QUESTIONS, model=name) for _ in range(60)], "ab"))
    took = time.monotonic() - started
    assert sum(loads().values()) <= 1 + took / DWELL_S


def test_a_checkpoint_that_no_worker_can_load_is_an_error_and_not_a_wait(
    make_worker: Callable[..., WorkerProcess], workers: list[WorkerProcess], backend: Backend, checkpoints: str
) -> None:
    workers[0].terminate()
    broken = checkpoints.replace("/a,", "/nowhere,")
    alone = make_worker("-c", "4", LAYA_CHECKPOINTS=broken, LAYA_MAX_LOADED="2", LAYA_DWELL="1").start()
    for _ in range(3):
        with pytest.raises(CheckpointUnavailable, match="'a' could not be loaded"):
            backend.predict("hi", QUESTIONS, model="a", timeout=15)
    able = make_worker("-c", "4", LAYA_MAX_LOADED="2", LAYA_DWELL="1").start()
    answers = [backend.predict("hi", QUESTIONS, model="a", timeout=15) for _ in range(5)]
    assert all(answer["model"] == answers[0]["model"] for answer in answers)
    alone.terminate()
    able.terminate()


def test_without_the_right_to_tell_each_other_a_worker_reads_all_its_queues(
    make_worker: Callable[..., WorkerProcess], backend: Backend, client: redis.Redis
) -> None:
    for name in NAMES:  # the keys of placement have types that it cannot use
        client.set(Keys("elsewhere").of("holds", name), "not a sorted set")
    worker = make_worker("-c", "4", LAYA_MAX_LOADED="2", LAYA_NAMESPACE="elsewhere").start()
    for name in NAMES:
        assert backend.predict("hi", QUESTIONS, model=name, timeout=20)["routing"]["model"] == name
    assert "Workers cannot tell each other" in worker.text()
    worker.terminate()
