"""Celery's features through the wire: canvas, retry, countdown, revoke, inspect, purge, expiring queues, priorities."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError
from kombu import Exchange, Queue

from tests.integration.wire import cut
from tests.integration.wire_app import close_app, make_app
from tests.integration.wire_worker import WireWorker
from tests.waiting import wait_until
from worker.server import EmbeddedServer

PAIRINGS = [("ours", "ours"), ("stock", "ours"), ("ours", "stock")]
POOL = 4

FAR_S = 120.0
"""As a countdown: it does not end while these tests run."""


@pytest.fixture(scope="module")
def apps(server: EmbeddedServer) -> Iterator[dict[str, Celery]]:
    made = {kind: make_app(server.url, kind) for kind in ("ours", "stock")}
    yield made
    for app in made.values():
        close_app(app)


@pytest.fixture(scope="module")
def app(apps: dict[str, Celery]) -> Celery:
    return apps["ours"]


@pytest.fixture(scope="module")
def workers(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WireWorker]]:
    """One of each kind; the stock one reads its own queue besides the shared one."""
    home = tmp_path_factory.mktemp("wire")
    kinds = {"ours": "wire,high", "stock": "stock"}
    made = {
        kind: WireWorker(home, server.url, "-c", str(POOL), "-E", "-Q", queues, kind=kind, name=kind).launch()
        for kind, queues in kinds.items()
    }
    for worker in made.values():
        wait_until(lambda worker=worker: " ready." in worker.text(), 60, "the worker's start")
    yield made
    for worker in made.values():
        worker.end()


@pytest.fixture(autouse=True)
def _running(workers: dict[str, WireWorker], client: redis.Redis) -> Iterator[None]:
    client.delete("runs")
    yield
    for kind, worker in workers.items():
        assert worker.alive, f"the {kind} worker died:\n{worker.text()[-3000:]}"


@pytest.fixture(scope="module")
def names(app: Celery, workers: dict[str, WireWorker]) -> dict[str, str]:
    """What each kind of worker calls itself."""
    return {name.partition("@")[0]: name for name in app.control.inspect(timeout=20, limit=len(workers)).ping()}


@pytest.fixture
def name(names: dict[str, str]) -> str:
    return names["ours"]


def settled(client: redis.Redis) -> bool:
    return client.hlen("unacked") == client.zcard("unacked_index") == 0


def forget(client: redis.Redis) -> None:
    """Take those whose countdown has not ended off the records: they stay with their worker, and nobody else waits."""
    client.delete("unacked", "unacked_index")


def reading(app: Celery, name: str, queue: str) -> bool:
    """Whether a worker reads a queue. It answers a command before it has done it, and may do two in any order."""
    return queue in {one["name"] for one in app.control.inspect([name], timeout=5).active_queues()[name]}


class Held:
    """Tasks that have begun, and go on when they are let go."""

    def __init__(self, app: Celery, client: redis.Redis, count: int, **options: Any) -> None:
        self._client, self._key, before = client, uuid.uuid4().hex, client.llen("runs")
        self._results = [app.tasks["hold"].apply_async((self._key,), **options) for _ in range(count)]
        self.ids = [result.id for result in self._results]
        wait_until(lambda: client.llen("runs") == before + count, what="the beginning of all of them")

    def let_go(self) -> None:
        self._client.rpush(self._key, *self.ids)
        for result in self._results:
            assert result.get(timeout=20) == result.id


def queue_of(worker: str) -> str:
    return {"ours": "wire", "stock": "stock"}[worker]


@pytest.mark.parametrize(("producer", "worker"), PAIRINGS)
def test_each_pairing_of_ours_and_stock_answers(
    producer: str, worker: str, apps: dict[str, Celery], client: redis.Redis
) -> None:
    results = [
        apps[producer].tasks["echo"].apply_async((n,), queue=queue_of(worker), priority=n % 10) for n in range(20)
    ]
    assert [result.get(timeout=20) for result in results] == list(range(20))
    wait_until(lambda: settled(client), what="the acknowledgements")


def test_a_stock_worker_and_ours_share_a_queue(app: Celery, names: dict[str, str], client: redis.Redis) -> None:
    both = list(names.values())
    app.control.add_consumer("shared", destination=both, reply=True)
    wait_until(lambda: all(reading(app, one, "shared") for one in both), what="the consumers")
    held = Held(app, client, 2 * POOL, queue="shared")  # more than one of them has room for
    results = [app.tasks["note"].apply_async((0.02,), queue="shared") for _ in range(60)]
    held.let_go()
    assert [result.get(timeout=20) for result in results] == [result.id for result in results]
    app.control.cancel_consumer("shared", destination=both, reply=True)
    runs = [line.split()[:2] for line in client.lrange("runs", 0, -1)]
    assert sorted(task.decode() for task, _ in runs) == sorted(held.ids + [result.id for result in results])  # once
    assert len({process for _, process in runs}) == 2
    wait_until(lambda: settled(client), what="the acknowledgements")


@pytest.mark.parametrize("worker", ["ours", "stock"])
def test_groups_chains_and_chords(worker: str, app: Celery) -> None:
    add, total, options = app.tasks["add"], app.tasks["total"], {"queue": queue_of(worker)}

    def step(*args: Any) -> Any:
        return add.s(*args).set(**options)

    assert group(step(n, n) for n in range(5)).apply_async().get(timeout=20) == [0, 2, 4, 6, 8]
    assert chain(step(1, 2), step(3), step(4)).apply_async().get(timeout=20) == 10
    assert chord([step(n, 1) for n in range(10)], total.s().set(**options)).apply_async().get(timeout=20) == 55


def test_a_failing_task_answers_with_its_error_and_is_acknowledged(app: Celery, client: redis.Redis) -> None:
    with pytest.raises(ValueError, match="as asked"):
        app.tasks["boom"].delay().get(timeout=20)
    wait_until(lambda: settled(client), what="the acknowledgement")


def test_a_retried_task_comes_again(app: Celery, client: redis.Redis) -> None:
    assert app.tasks["second_time"].delay().get(timeout=20) == 1
    wait_until(lambda: settled(client), what="the acknowledgements")


def test_a_countdown_is_kept_and_its_message_stays_on_record(app: Celery, client: redis.Redis) -> None:
    started = time.monotonic()
    result = app.tasks["echo"].apply_async((1,), countdown=1)
    wait_until(lambda: client.hlen("unacked") == 1, what="the take")
    assert result.get(timeout=20) == 1
    assert time.monotonic() - started >= 0.9
    wait_until(lambda: settled(client), what="the acknowledgement")


def test_tasks_with_a_countdown_hold_no_others_up(app: Celery, client: redis.Redis) -> None:
    for number in range(3 * POOL):
        app.tasks["echo"].apply_async((number,), countdown=FAR_S)
    assert app.tasks["echo"].delay("now").get(timeout=20) == "now"
    forget(client)


def test_a_waiting_task_can_be_revoked(app: Celery, name: str, client: redis.Redis) -> None:
    busy = Held(app, client, POOL)
    waiting = app.tasks["note"].delay()
    waiting.revoke()
    wait_until(lambda: waiting.id in app.control.inspect([name], timeout=20).revoked()[name], what="the word of it")
    busy.let_go()
    with pytest.raises(TaskRevokedError):
        waiting.get(timeout=20)
    assert client.llen("runs") == POOL
    wait_until(lambda: settled(client), what="the acknowledgements")


def test_inspect_shows_workers_and_what_they_do(app: Celery, name: str, client: redis.Redis) -> None:
    later = app.tasks["echo"].apply_async((1,), countdown=FAR_S)
    wait_until(lambda: client.hlen("unacked") == 1, what="the take")
    held = Held(app, client, POOL)
    look = app.control.inspect([name], timeout=20)  # ends with the reply
    assert look.ping() == {name: {"ok": "pong"}}
    assert {task["id"] for task in look.active()[name]} == set(held.ids)
    assert later.id in {task["request"]["id"] for task in look.scheduled()[name]}
    assert {queue["name"] for queue in look.active_queues()[name]} == {"wire", "high"}
    assert look.reserved() == {name: []}
    assert look.stats()[name]["prefetch_count"] >= POOL
    held.let_go()
    forget(client)


def test_replies_of_inspect_leave_nothing_behind(app: Celery, client: redis.Redis) -> None:
    before = set(client.keys("*"))
    app.control.inspect(timeout=1).ping()
    wait_until(lambda: settled(client), what="the acknowledgements")
    left = {key for key in set(client.keys("*")) - before if client.ttl(key) == -1}
    assert left == set()


def test_queues_are_added_and_cancelled_under_load(app: Celery, name: str, client: redis.Redis) -> None:
    results = [app.tasks["note"].apply_async((0.01,), queue="extra") for _ in range(100)]
    for _ in range(4):
        app.control.add_consumer("extra", destination=[name], reply=True)
        wait_until(lambda: reading(app, name, "extra"), what="the consumer")
        app.control.cancel_consumer("extra", destination=[name], reply=True)
        wait_until(lambda: not reading(app, name, "extra"), what="the consumer's end")
    app.control.add_consumer("extra", destination=[name], reply=True)
    assert [result.get(timeout=20) for result in results] == [result.id for result in results]
    app.control.cancel_consumer("extra", destination=[name], reply=True)
    assert client.llen("runs") == 100  # each ran once
    wait_until(lambda: settled(client), what="the acknowledgements")


def test_purge_empties_a_queue(app: Celery, client: redis.Redis) -> None:
    for priority in (0, 5, 9):
        app.tasks["echo"].apply_async((1,), queue="unread", priority=priority)
    with app.connection_for_write() as connection:
        assert connection.default_channel.queue_purge("unread") == 3
    assert client.keys("unread*") == []


def test_priority_decides_and_the_length_of_a_queue_is_its_list_s(app: Celery, client: redis.Redis) -> None:
    held = Held(app, client, POOL)
    low = [app.tasks["note"].apply_async((0.05,), priority=9) for _ in range(POOL)]
    high = [app.tasks["note"].apply_async((0.05,), priority=0) for _ in range(POOL)]
    assert (client.llen("wire"), client.llen("wire\x06\x169")) == (POOL, POOL)
    held.let_go()
    for result in (*low, *high):
        result.get(timeout=20)
    order = [line.split()[0].decode() for line in client.lrange("runs", POOL, -1)]
    assert set(order[:POOL]) == {result.id for result in high}


def test_an_expiring_queue_goes_with_its_lists_and_bell(app: Celery, client: redis.Redis) -> None:
    short = Queue("short", Exchange("short"), routing_key="short", expires=0.5)
    app.tasks["echo"].apply_async((1,), queue=short)
    assert client.llen("short") == 1
    assert 0 < client.pttl("short") <= 500
    wait_until(lambda: client.keys("short*") == [], what="the queue's end")
    assert 0 < client.pttl("laya.bell.short") <= 10_000


def test_no_more_is_reserved_than_the_pool_has_threads(app: Celery, client: redis.Redis) -> None:
    results = [app.tasks["note"].delay(0.02) for _ in range(100)]
    held = []
    while not all(result.ready() for result in results[-POOL:]):
        held.append(client.hlen("unacked"))
        time.sleep(0.005)
    for result in results:
        result.get(timeout=20)
    reserved = [int(line.split()[2]) for line in client.lrange("runs", 0, -1)]
    assert max(reserved) <= POOL
    # A record lives on until its acknowledgement has travelled, with the take that fills the place.
    assert max(held) <= 2 * POOL


def test_without_the_setting_no_more_is_reserved_than_the_prefetch_count(
    app: Celery, client: redis.Redis, server: EmbeddedServer, tmp_path: Path
) -> None:
    options = ("-c", "2", "--prefetch-multiplier", "3", "-Q", "prefetching")
    with WireWorker(tmp_path, server.url, *options, name="prefetching", WIRE_PREFETCH="1"):
        results = [app.tasks["note"].apply_async((0.01,), queue="prefetching") for _ in range(60)]
        for result in results:
            result.get(timeout=20)
    assert max(int(line.split()[2]) for line in client.lrange("runs", 0, -1)) <= 2 * 3


def test_connections_cut_again_and_again_lose_nothing_and_repeat_nothing_that_runs(
    app: Celery, client: redis.Redis, workers: dict[str, WireWorker]
) -> None:
    results = [app.tasks["note"].delay(1.5) for _ in range(POOL)]
    wait_until(lambda: client.llen("runs") == POOL, what="the tasks' start")
    for _ in range(3):
        cut(client)
    more = [app.tasks["echo"].delay(n) for n in range(20)]
    assert [result.get(timeout=30) for result in more] == list(range(20))
    assert [result.get(timeout=30) for result in results] == [result.id for result in results]
    wait_until(lambda: settled(client), what="the acknowledgements")
    assert client.llen("runs") == POOL


def test_nonsense_of_every_kind_ends_no_worker(app: Celery, client: redis.Redis) -> None:
    app.tasks["echo"].apply_async((1,), queue="model")
    model = json.loads(client.lpop("model"))
    dice = random.Random(4)
    nonsense = [None, 7, -1.5, "", "x", [], {}, True, [[]], {"a": {}}, "\ud800", 10**40, "base64", "application/json"]

    def spoil(value: Any, depth: int) -> Any:
        """Replace, remove or keep each part."""
        if not isinstance(value, dict) or depth == 0:
            return dice.choice(nonsense) if dice.random() < 0.3 else value
        return {key: spoil(part, depth - 1) for key, part in value.items() if dice.random() < 0.95}

    for number in range(300):
        spoilt = spoil(model, dice.choice([1, 2, 3]))
        if isinstance(properties := spoilt.get("properties"), dict) and dice.random() < 0.9:
            properties["delivery_tag"] = f"tag{number}"
        text = json.dumps(spoilt)
        client.lpush("wire", text[: dice.randrange(len(text))] if dice.random() < 0.1 else text)
    assert app.tasks["echo"].delay("sense").get(timeout=30) == "sense"
    assert client.llen("laya.malformed") > 0
    client.delete("unacked", "unacked_index")  # what Celery fails on would come again and again


def test_a_solo_pool_takes_one_at_a_time(
    app: Celery, client: redis.Redis, server: EmbeddedServer, tmp_path: Path
) -> None:
    with WireWorker(tmp_path, server.url, "-P", "solo", "-Q", "solo", name="solo"):
        results = [app.tasks["note"].apply_async((0.01,), queue="solo") for _ in range(20)]
        assert [result.get(timeout=20) for result in results] == [result.id for result in results]
        wait_until(lambda: settled(client), what="the acknowledgements")
    assert {line.split()[2] for line in client.lrange("runs", 0, -1)} == {b"1"}


def test_scripts_flushed_and_everything_flushed_are_survived(app: Celery, client: redis.Redis) -> None:
    assert app.tasks["echo"].delay(1).get(timeout=20) == 1
    client.script_flush()
    assert app.tasks["echo"].delay(2).get(timeout=20) == 2
    client.flushall()
    assert app.tasks["echo"].delay(3).get(timeout=20) == 3
