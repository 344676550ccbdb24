"""Workers and servers that are killed at random moments under load: no message is lost, whatever was under way.

A short run for every day. `python -m benchmarks.transport` does the long one, beside the stock transport.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from tests.integration.wire_app import close_app, make_app
from tests.integration.wire_worker import WireWorker
from tests.waiting import wait_until
from worker.server import EmbeddedServer

VISIBILITY_S = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(directory=tmp_path / "data", appendonly=True, options={"appendfsync": "always"}) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as connection:
        yield connection


@pytest.fixture
def app(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    monkeypatch.setenv("WIRE_VISIBILITY", str(VISIBILITY_S))
    made = make_app(server.url)
    yield made
    close_app(made)


@pytest.fixture
def make_worker(server: EmbeddedServer, tmp_path: Path) -> Iterator[Callable[..., WireWorker]]:
    made: list[WireWorker] = []

    def make(*options: str) -> WireWorker:
        visibility = {"WIRE_VISIBILITY": str(VISIBILITY_S)}
        made.append(WireWorker(tmp_path, server.url, "-c", "8", *options, name=f"wire{len(made)}", **visibility))
        return made[-1]

    yield make
    for worker in made:
        worker.end()


def publish(app: Celery, task: str, count: int, *args: Any) -> list[str]:
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer, producer.batch():
        return [app.tasks[task].apply_async(args, producer=producer).id for _ in range(count)]


def answered(client: redis.Redis, ids: list[str]) -> int:
    return sum(value is not None for value in client.mget([f"celery-task-meta-{one}" for one in ids]))


def settled(client: redis.Redis) -> bool:
    return client.hlen("unacked") == client.zcard("unacked_index") == client.llen("wire") == 0


def test_workers_and_the_server_are_killed_and_every_task_is_answered(
    server: EmbeddedServer, client: redis.Redis, app: Celery, make_worker: Callable[..., WireWorker]
) -> None:
    moments = random.Random(4)
    ids = publish(app, "nap", 1500, 0.01)
    worker = make_worker().start()
    for kill in range(5):
        before = answered(client, ids)
        wait_until(lambda before=before: answered(client, ids) > before, 30, "work")
        time.sleep(moments.uniform(0, 0.3))
        if kill == 2:
            server.kill()
            server.start()
            wait_until(lambda: not client.info("persistence")["loading"], 30, "the reading of the journal")
        else:
            worker.kill()
            worker.start()
    wait_until(lambda: answered(client, ids) == len(ids), 40, "the answers")
    wait_until(lambda: settled(client), 10, "the acknowledgements")


def test_a_task_that_kills_its_worker_once_is_answered_by_the_next(
    client: redis.Redis, app: Celery, make_worker: Callable[..., WireWorker]
) -> None:
    worker = make_worker().start()
    result = app.tasks["die_once"].delay()
    wait_until(lambda: not worker.alive, what="the worker's end")
    assert client.hlen("unacked") == 1
    worker.start()
    assert result.get(timeout=20) == result.id


def test_a_worker_killed_between_result_and_acknowledgement_repeats_and_loses_nothing(
    client: redis.Redis, app: Celery, make_worker: Callable[..., WireWorker]
) -> None:
    worker = make_worker().start()
    result = app.tasks["die_with_result"].delay()
    wait_until(lambda: not worker.alive, what="the worker's end")
    assert result.get(timeout=5) == result.id
    assert client.hlen("unacked") == 1
    worker.start()
    wait_until(lambda: settled(client), what="the second run's acknowledgement")
    assert client.lrange("runs", 0, -1) == [result.id.encode()] * 2


def test_workers_ended_in_order_lose_nothing_and_repeat_nothing(
    client: redis.Redis, app: Celery, make_worker: Callable[..., WireWorker]
) -> None:
    ids = publish(app, "note", 600, 0.02)
    for _ in range(3):
        worker = make_worker().start()
        before = answered(client, ids)
        wait_until(lambda before=before: answered(client, ids) > before + 20, 30, "work")
        assert worker.terminate() == 0
        assert client.hlen("unacked") == client.zcard("unacked_index") == 0
    make_worker().start()
    wait_until(lambda: answered(client, ids) == len(ids), 30, "the answers")
    assert client.llen("runs") == len(ids)


def test_a_second_worker_takes_over_what_one_that_ends_has_not_begun(
    client: redis.Redis, app: Celery, make_worker: Callable[..., WireWorker]
) -> None:
    first = make_worker("-c", "2").start()
    long = [app.tasks["hold"].delay("let go") for _ in range(2)]
    wait_until(lambda: client.llen("runs") == 2, what="the long tasks")
    second = make_worker().start()
    first.ask_to_end()
    ids = publish(app, "note", 50)
    wait_until(lambda: answered(client, ids) == len(ids), what="the answers, while the first still works")
    client.rpush("let go", *range(20))  # a long task that takes longer than the visibility timeout runs elsewhere too
    assert first.exit_code() == 0
    assert [result.get(timeout=20) for result in long] == [result.id for result in long]
    assert second.terminate() == 0
    ran = [line.split()[0].decode() for line in client.lrange("runs", 0, -1)]
    assert sorted(task for task in ran if task in ids) == sorted(ids)  # each once
