"""A full queue: refused at once, by every backend; waited for by a long list; never in a worker's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import chain

from producer.bulk import predict_many
from producer.errors import DeadlineExceeded, QueueFull
from tests.faults.deployment import NOUL, Deployment
from tests.integration.conftest import Backend
from tests.integration.wire import Commands
from tests.waiting import wait_until
from worker.server import EmbeddedServer

LIMIT = 5
QUEUE = "laya.english"
CHECKPOINTS = "english=/nowhere,multilingual=/nowhere"


@pytest.fixture
def make_backend(server: EmbeddedServer, client: redis.Redis) -> Iterator[Callable[..., Backend]]:
    client.flushall()
    made: list[Backend] = []

    def make(**settings: Any) -> Backend:
        made.append(Backend(server.url, **{"checkpoints": CHECKPOINTS, "max_queue": LIMIT, **settings}))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def ask(backend: Backend, model: str = "english", **options: Any) -> Any:
    return backend.submit_prediction.apply_async(("hello", NOUL), {"model": model}, **options)


def fill(backend: Backend) -> None:
    for _ in range(LIMIT):
        ask(backend)


def test_a_full_queue_is_refused_with_its_numbers(make_backend: Callable[..., Backend], client: redis.Redis) -> None:
    backend = make_backend()
    fill(backend)
    for _ in range(3):
        with pytest.raises(QueueFull) as refusal:
            ask(backend)
        assert (refusal.value.checkpoint, refusal.value.waiting, refusal.value.limit) == ("english", LIMIT, LIMIT)
        assert refusal.value.retry_after > 0
        assert "LAYA_MAX_QUEUE" in str(refusal.value)
    assert client.llen(QUEUE) == LIMIT


def test_a_backend_that_has_just_started_is_refused_too_and_leaves_nothing(
    make_backend: Callable[..., Backend], client: redis.Redis
) -> None:
    fill(make_backend())
    waiting = client.lrange(QUEUE, 0, -1)
    with pytest.raises(QueueFull):
        ask(make_backend())
    assert client.lrange(QUEUE, 0, -1) == waiting


def test_a_refused_request_of_predict_leaves_nobody_waiting(make_backend: Callable[..., Backend]) -> None:
    backend = make_backend()
    fill(backend)
    with pytest.raises(QueueFull):
        backend.predict("hello", NOUL, model="english")
    wait_until(lambda: not backend.results._waiting, what="the end of the wait")


def test_other_checkpoints_and_other_priorities(make_backend: Callable[..., Backend], client: redis.Redis) -> None:
    backend = make_backend()
    for priority in (0, 3, 6, 9, 9):
        ask(backend, priority=priority)
    for priority in (0, 9):
        with pytest.raises(QueueFull):
            ask(backend, priority=priority)
    ask(backend, model="multilingual")
    assert client.llen("laya.multilingual") == 1


def test_there_is_room_again_as_soon_as_a_worker_has_taken(
    make_backend: Callable[..., Backend], client: redis.Redis
) -> None:
    backend = make_backend()
    fill(backend)
    with pytest.raises(QueueFull):
        ask(backend)
    client.rpop(QUEUE)
    ask(backend)
    with pytest.raises(QueueFull):
        ask(backend)


def test_many_published_together_are_refused_where_the_queue_is_full(
    make_backend: Callable[..., Backend], client: redis.Redis
) -> None:
    backend = make_backend()
    with backend.app.producer_or_acquire() as producer, producer.batch():
        for _ in range(LIMIT):
            ask(backend, producer=producer)
        with pytest.raises(QueueFull):
            ask(backend, producer=producer)
    assert client.llen(QUEUE) == LIMIT


def test_a_limit_of_0_is_none(make_backend: Callable[..., Backend], client: redis.Redis) -> None:
    backend = make_backend(max_queue=0)
    for _ in range(2 * LIMIT):
        ask(backend)
    assert client.llen(QUEUE) == 2 * LIMIT


def test_the_limit_costs_a_publish_no_round_trip(make_backend: Callable[..., Backend], client: redis.Redis) -> None:
    backend = make_backend(max_queue=1000)
    ask(backend)
    before = Commands(client)
    for _ in range(10):
        ask(backend)
    asked = before.since()
    assert asked["llen"] == 30  # in the pipeline of the publish: the lists of the other priorities
    assert asked.get("lrem", 0) == 0
    assert asked["lpush"] == 20


def test_a_long_list_waits_for_room_until_its_time_is_up(
    make_backend: Callable[..., Backend], client: redis.Redis
) -> None:
    backend = make_backend()
    requests = [{"state": str(number), "questions": NOUL, "model": "english"} for number in range(4 * LIMIT)]
    with pytest.raises(DeadlineExceeded):
        list(predict_many(requests, per_message=1, timeout=1, task=backend.submit_predictions))
    assert client.llen(QUEUE) == LIMIT


def test_a_worker_empties_it_and_publishes_what_follows_although_it_is_full(tmp_path: Path) -> None:
    with EmbeddedServer() as server:
        run = Deployment(tmp_path, server, LAYA_MAX_QUEUE=str(LIMIT))
        try:
            backend = Backend(server.url, checkpoints=run.backend.app.settings.checkpoints, max_queue=LIMIT)
            first = backend.submit_prediction.s("nap 0.5", NOUL, model="english")
            after = backend.submit_prediction.si("after", NOUL, model="english")
            chained = chain(first, after).apply_async()
            run.start(threads=1)
            wait_until(lambda: run.lines("begin"), what="the first of the chain at work")
            fill(backend)  # a worker of one thread takes no more while it works
            requests = [{"state": f"many {number}", "questions": NOUL, "model": "english"} for number in range(40)]
            answered = dict(predict_many(requests, per_message=1, timeout=30, task=backend.submit_predictions))
            assert sum("answers" in answer for answer in answered.values()) == len(requests)
            assert "answers" in chained.get(timeout=10)
            backend.close()
        finally:
            run.close()
