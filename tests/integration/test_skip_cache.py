"""The skip cache between real workers: what one has computed, no other computes again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from laya.simulated import write_checkpoint
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.server import EmbeddedServer

NAMES = ("multilingual", "english")
TOGETHER = 64
LISTS = 8


class Fleet:
    """Two workers with a cache on a server of its own, and what they have done."""

    def __init__(self, make: Callable[..., WorkerProcess], cache: EmbeddedServer, home: Path) -> None:
        self.work = home / "work"
        self.work.touch()
        sources = {name: write_checkpoint(home / name, pass_ms=300, row_ms=0, device=name) for name in NAMES}
        self.settings = {
            "LAYA_CHECKPOINTS": ",".join(f"{name}={path}" for name, path in sources.items()),
            "LAYA_HOOKS": "hooks.SkipCache,cache_hooks.Work",
            "LAYA_CACHE_URL": cache.url,
            "LAYA_CACHE_BUDGET_MS": "2000",  # a busy machine is no reason to miss
            "LAYA_MAX_LOADED": "2",
            "LAYA_PRELOAD": "multilingual",  # so that both workers read its queue
            "WORK": str(self.work),
        }
        self._make = make
        self.workers = [self.add().launch(), self.add().launch()]
        for worker in self.workers:
            worker.until_ready()

    def add(self, **settings: str) -> WorkerProcess:
        return self._make("-P", "threads", "-c", "16", **{**self.settings, **settings})

    def done(self) -> Counter[str]:
        return Counter(self.work.read_text().split("\n")[:-1])


@pytest.fixture(scope="module")
def cache_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(options={"maxmemory": "64mb", "maxmemory-policy": "allkeys-lfu"}) as running:
        yield running


@pytest.fixture(scope="module")
def fleet(
    make_worker: Callable[..., WorkerProcess], cache_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Fleet:
    return Fleet(make_worker, cache_server, tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="module")
def backend(server: EmbeddedServer) -> Iterator[Backend]:
    made = Backend(server.url, checkpoints=",".join(NAMES))
    yield made
    made.close()


def ask_all(backend: Backend, requests: list[tuple[Any, Any]], **options: Any) -> list[Any]:
    waiting = [backend.submit_prediction.delay(*request, **options) for request in requests]
    return [one.get(timeout=60) for one in waiting]


def test_equal_requests_at_once_over_two_workers_are_one_forward(
    fleet: Fleet, backend: Backend, questions: dict[str, Any]
) -> None:
    ask_all(backend, [(f"warm {number}", questions) for number in range(8)], model="multilingual")
    before = fleet.done()
    answers = ask_all(backend, [("together", questions)] * TOGETHER, model="multilingual")
    assert fleet.done() - before == Counter({"forward multilingual": 1})
    assert len({json.dumps(answer) for answer in answers}) == 1
    assert all("succeeded" in worker.text() for worker in fleet.workers)


def test_equal_lists_at_once_over_two_workers_are_computed_once(
    fleet: Fleet, backend: Backend, questions: dict[str, Any]
) -> None:
    requests = [{"state": f"in a list {at}", "questions": questions, "model": "multilingual"} for at in range(LISTS)]
    before = fleet.done()
    waiting = [backend.submit_predictions.delay(requests) for _ in range(LISTS)]
    answers = [one.get(timeout=60) for one in waiting]
    assert fleet.done() - before == Counter({"forward multilingual": LISTS})
    assert len({json.dumps(answer) for answer in answers}) == 1


def test_an_answer_is_computed_once_in_the_fleet_and_the_hit_is_the_same_byte_for_byte(
    fleet: Fleet, backend: Backend, questions: dict[str, Any]
) -> None:
    requests = [(f"state {number}", questions) for number in range(12)]
    first = ask_all(backend, requests, model="multilingual", min_confidence=0.4)
    wait_until(lambda: fleet.done()["forward multilingual"] >= 12, what="all of them are computed")
    before = fleet.done()
    again = ask_all(backend, requests * 3, model="multilingual", min_confidence=0.4)
    assert fleet.done() == before
    assert [json.dumps(answer) for answer in again] == [json.dumps(answer) for answer in first] * 3


def test_a_list_of_requests_is_answered_from_what_single_ones_left(
    fleet: Fleet, backend: Backend, questions: dict[str, Any]
) -> None:
    (single,) = ask_all(backend, [("listed", questions)], model="multilingual")
    before = fleet.done()
    listed = {"state": "listed", "questions": questions, "model": "multilingual"}
    other = {"state": "other", "questions": questions, "model": "multilingual"}
    results = backend.submit_predictions.delay([listed, other, listed]).get(timeout=60)
    assert fleet.done() - before == Counter({"forward multilingual": 1})
    assert [json.dumps(results[0]), json.dumps(results[2])] == [json.dumps(single)] * 2


def test_a_hit_for_a_checkpoint_that_no_worker_holds_loads_and_evicts_nothing(
    fleet: Fleet, backend: Backend, questions: dict[str, Any], cache_server: EmbeddedServer
) -> None:
    ask_all(backend, [("rare", questions)], model="english")
    with redis.Redis.from_url(cache_server.url) as client:
        wait_until(lambda: client.keys("laya.cache::english:*"), what="the answer is kept")
    # Another fleet, with another hash seed, that holds nothing and knows of the first only by the cache.
    with EmbeddedServer() as elsewhere:
        worker = fleet.add(LAYA_BROKER_URL=elsewhere.url, LAYA_PRELOAD="").start()
        stranger = Backend(elsewhere.url, checkpoints=",".join(NAMES))
        try:
            before = fleet.done()
            ask_all(stranger, [("rare", questions)] * 4, model="english")
            assert fleet.done() == before
        finally:
            stranger.close()
            worker.end()
