"""Doorbells: a waiting consumer hears a producer of ours at once, finds others' messages, and asks little at rest."""

from __future__ import annotations

import time

import pytest
import redis
from kombu import Connection, Producer

from tests.integration.wire import LONG_S, STOCK, Commands, Loop, connected, publish, queue
from worker.server import EmbeddedServer

pytestmark = pytest.mark.usefixtures("emptied")


def test_a_waiting_consumer_hears_a_producer_of_ours_at_once(server: EmbeddedServer, ours: Connection) -> None:
    with Loop(server.url, "jobs", polling_interval=LONG_S) as loop:
        for number in range(1, 4):
            loop.idle()
            publish(ours, "jobs", number)
            loop.got(number)


def test_what_a_stock_producer_published_is_found_without_a_ring(server: EmbeddedServer) -> None:
    with connected(server.url, STOCK) as stock, Loop(server.url, "jobs") as loop:
        for number in range(1, 4):
            loop.idle()
            publish(stock, "jobs", number)
            loop.got(number)


def test_a_message_whose_ring_was_lost_is_found(server: EmbeddedServer, client: redis.Redis, ours: Connection) -> None:
    with Loop(server.url, "jobs") as loop:
        loop.idle()
        publish(ours, "jobs", "one")
        client.delete("laya.bell.jobs")
        loop.got(1)


def test_each_of_many_waiting_consumers_hears_its_message(server: EmbeddedServer, ours: Connection) -> None:
    loops = [Loop(server.url, "jobs", prefetch=1, polling_interval=LONG_S).idle() for _ in range(3)]
    publish(ours, "jobs", *range(3))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not all(loop.held for loop in loops):
        for loop in loops:
            loop.turn()
    heard = [len(loop.held) for loop in loops]
    for loop in loops:
        loop.close()
    assert heard == [1, 1, 1]


def test_a_restored_message_rings(server: EmbeddedServer, client: redis.Redis, ours: Connection) -> None:
    publish(ours, "jobs", "one")
    with Loop(server.url, "jobs", prefetch=1) as first, Loop(server.url, "jobs", polling_interval=LONG_S) as second:
        first.got(1)
        second.idle()
        first.held[0].requeue()
        second.got(1)


def test_bells_of_a_queue_that_nobody_reads_stay_small_and_go(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(100))
    assert client.llen("laya.bell.jobs") == 64
    assert 0 < client.pttl("laya.bell.jobs") <= 10_000


def test_a_batch_of_publishes_rings(server: EmbeddedServer, client: redis.Redis, ours: Connection) -> None:
    with Loop(server.url, "jobs", polling_interval=LONG_S) as loop:
        loop.idle()
        producer = Producer(ours)
        with producer.batch():
            for number in range(5):
                producer.publish(
                    number, exchange="jobs", routing_key="jobs", declare=[queue("jobs")], serializer="json"
                )
        assert loop.got(5) == list(range(5))


def test_a_consumer_that_was_too_busy_to_hear_a_bell_takes_first(
    server: EmbeddedServer, client: redis.Redis, ours: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("producer.transport_take.DEAF_S", 0.05)
    publish(ours, "jobs", "one")
    with Loop(server.url, "jobs", polling_interval=LONG_S) as loop:
        qos = loop.channel.qos
        qos.room, qos.can_consume = (lambda: 5), (lambda: not loop.held)  # its take found no second message
        loop.got(1)
        loop.turn_for(0.2)
        assert loop.channel.taker.in_flight is None
        publish(ours, "jobs", "two")
        client.delete("laya.bell.jobs")  # as time does
        qos.can_consume = lambda: True
        assert loop.got(2) == ["one", "two"]


def test_more_than_one_take_brings_needs_no_ring(server: EmbeddedServer) -> None:
    with connected(server.url, STOCK) as stock:
        publish(stock, "jobs", *range(150))
    with Loop(server.url, "jobs", polling_interval=LONG_S) as loop:
        assert loop.got(150) == list(range(150))


def test_a_bell_is_taken_down_with_the_last_message(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(5))
    with Loop(server.url, "jobs") as loop:
        loop.got(5)
        assert client.exists("laya.bell.jobs") == 0


def test_an_idle_consumer_asks_no_more_than_three_things_a_second(server: EmbeddedServer, client: redis.Redis) -> None:
    with Loop(server.url, *(f"queue{number}" for number in range(20)), unacked_restore_interval=2) as loop:
        loop.idle()
        commands = Commands(client)
        loop.turn_for(4.0)
        asked = commands.since()
        assert sum(asked.values()) <= 4 * 3, asked
