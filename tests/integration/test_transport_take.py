"""Messages on their way from the list to a consumer: taken and recorded in one step, in order, and no more than fit."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis
from kombu import Connection

from tests.integration.wire import LONG_S, STOCK, Commands, Loop, connect, publish, queue
from worker.server import EmbeddedServer

pytestmark = pytest.mark.usefixtures("emptied")


def test_a_message_is_on_record_when_its_consumer_gets_it(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", "one")
    with Loop(server.url, "jobs") as loop:
        loop.got(1)
        tag = loop.held[0].delivery_tag
        message, exchange, routing_key = json.loads(client.hget("unacked", tag))
        assert message["properties"]["delivery_tag"] == tag
        assert (exchange, routing_key) == ("", "jobs")
        assert client.zscore("unacked_index", tag) == pytest.approx(client.time()[0], abs=5)
        assert client.llen("jobs") == 0


def test_with_room_for_many_many_are_taken_in_one_step(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(40))
    with Loop(server.url, "jobs", prefetch=40) as loop:
        commands = Commands(client)
        assert loop.got(40) == list(range(40))
        asked = commands.since()
        assert asked.get("evalsha", 0) + asked.get("eval", 0) <= 2  # the first may find that the server has no script


def test_no_more_are_taken_than_there_is_room_for(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(10))
    with Loop(server.url, "jobs", prefetch=3) as loop:
        loop.got(3)
        loop.turn_for(0.1)
        assert (len(loop.held), client.hlen("unacked"), client.llen("jobs")) == (3, 3, 7)
        loop.held[0].ack()
        loop.got(4)
        loop.turn_for(0.1)
        assert (len(loop.held), client.hlen("unacked"), client.llen("jobs")) == (4, 3, 6)


def test_the_worker_s_room_counts_where_it_is_known(server: EmbeddedServer, ours: Connection) -> None:
    publish(ours, "jobs", *range(10))
    with Loop(server.url, "jobs", prefetch=8) as loop:
        loop.channel.qos.room = lambda: 2 - len(loop.held)
        loop.got(2)
        loop.turn_for(0.1)
        assert loop.bodies == [0, 1]


def test_one_is_taken_at_a_time_where_a_worker_replaced_the_question_for_room(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(10))
    with Loop(server.url, "jobs", prefetch=8) as loop:
        loop.channel.qos.can_consume = lambda: len(loop.held) < 2  # as worker_disable_prefetch does
        loop.got(2)
        loop.turn_for(0.1)
        assert (loop.bodies, client.hlen("unacked")) == ([0, 1], 2)


def test_without_a_loop_each_drain_delivers_one_message(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(3))
    got: list[Any] = []
    with ours.Consumer(queue("jobs"), callbacks=[lambda body, message: got.append(body) or message.ack()]):
        for expected in range(1, 4):
            ours.drain_events(timeout=5)
            assert (len(got), client.hlen("unacked"), client.llen("jobs")) == (expected, 0, 3 - expected)
        with pytest.raises(TimeoutError):
            ours.drain_events(timeout=0.1)
    assert got == [0, 1, 2]


def test_priorities_come_first_and_then_the_order_of_publishing(server: EmbeddedServer, ours: Connection) -> None:
    for priority in (9, 0, 3, 0, 6):
        for name in ("a", "b"):
            publish(ours, name, f"{name}{priority}", priority=priority)
    with Loop(server.url, "a", "b", queue_order_strategy="priority") as loop:
        expected = ["a0", "a0", "b0", "b0", "a3", "b3", "a6", "b6", "a9", "b9"]
        assert loop.got(10) == expected


def test_a_queue_that_gave_is_read_last_next_time(server: EmbeddedServer, ours: Connection) -> None:
    publish(ours, "a", *range(4))
    publish(ours, "b", "b")
    with Loop(server.url, "a", "b", prefetch=2) as loop:
        loop.got(2)
        loop.held[0].ack()
        loop.got(3)
        assert loop.bodies == [0, 1, "b"]


class Chosen:
    """An order of queues that the test decides."""

    names: tuple[str, ...] = ()

    def update(self, items: list[str]) -> None:
        pass

    def consume(self, count: int) -> list[str]:
        return list(self.names[:count])

    def rotate(self, last: str) -> None:
        pass


def test_a_queue_left_out_by_the_order_is_not_read_and_soon_is_when_let_in(
    server: EmbeddedServer, ours: Connection
) -> None:
    Chosen.names = ("a",)
    publish(ours, "b", "waiting")
    with Loop(server.url, "a", "b", queue_order_strategy=f"{__name__}:Chosen") as loop:
        publish(ours, "a", "read")
        loop.got(1)
        loop.idle().turn_for(0.2)
        assert loop.bodies == ["read"]
        Chosen.names = ("b", "a")
        assert loop.got(2)[1] == "waiting"


def test_no_queue_at_all_is_waited_for(server: EmbeddedServer, ours: Connection) -> None:
    Chosen.names = ()
    publish(ours, "a", "waiting")
    with Loop(server.url, "a", queue_order_strategy=f"{__name__}:Chosen") as loop:
        loop.turn_for(0.2)
        assert loop.held == []
        Chosen.names = ("a",)
        assert loop.got(1) == ["waiting"]


def test_a_queue_added_to_a_waiting_consumer_is_read(server: EmbeddedServer, ours: Connection) -> None:
    publish(ours, "late", "waiting")
    with Loop(server.url, "jobs") as loop:
        loop.idle()
        loop.consumer.add_queue(queue("late"))
        loop.consumer.consume()
        assert loop.got(1) == ["waiting"]


def test_huge_messages_are_taken_a_few_at_a_time(server: EmbeddedServer, client: redis.Redis, ours: Connection) -> None:
    publish(ours, "jobs", *("x" * 1_500_000 for _ in range(5)))  # 2 MB each, as base64
    on_record: list[int] = []
    with Loop(server.url, "jobs", on_message=lambda _: on_record.append(client.hlen("unacked"))) as loop:
        loop.got(5)
    assert on_record == [3, 3, 3, 5, 5]  # the message that reaches 4 MiB is the last of its take


def test_a_consumer_without_acknowledgement_leaves_no_record(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(5))
    with Loop(server.url, "jobs", no_ack=True) as loop:
        loop.got(5)
        loop.until(lambda: client.hlen("unacked") == client.zcard("unacked_index") == 0)


@pytest.mark.parametrize("error", [RuntimeError, KeyError, RecursionError])
def test_a_message_that_its_consumer_cannot_handle_ends_no_worker_and_holds_no_place(
    error: type[Exception], server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    def fail_once(message: Any) -> None:
        if message.decode() == 1 and not message.headers.get("redelivered"):
            raise error("as asked")

    publish(ours, "jobs", *range(5))
    options = {"visibility_timeout": 1, "unacked_restore_interval": 0.1}
    with Loop(server.url, "jobs", prefetch=1, on_message=fail_once, **options) as loop:
        for count in range(1, 6):
            loop.got(count)
            if loop.bodies[-1] != 1:
                loop.held[-1].ack()
        loop.until(lambda: client.hlen("unacked") == 1)  # it failed, and will come again
        assert loop.got(6) == [0, 1, 2, 3, 4, 1]
        loop.held[-1].ack()


@pytest.mark.parametrize("error", [MemoryError, ConnectionError, redis.ConnectionError])
def test_what_is_not_the_message_s_fault_is_raised_and_loses_neither_it_nor_the_rest_of_the_take(
    error: type[Exception], server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    def fail_at_one(message: Any) -> None:
        if message.decode() == 1:
            raise error("as asked")

    publish(ours, "jobs", *range(4))
    with Loop(server.url, "jobs", prefetch=4, on_message=fail_at_one) as loop:
        with pytest.raises(error, match="as asked"):
            loop.got(4)
        assert loop.bodies == [0, 1]
        loop.hub._loop = None  # a worker would start its loop anew
        assert loop.got(4) == [0, 1, 2, 3]
        assert client.hlen("unacked") == 4
    assert client.llen("jobs") == 4  # not acknowledged: put back


def test_messages_that_a_cancelled_consumer_would_have_got_go_back_in_their_order(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(5))
    with Loop(server.url, "jobs", on_message=lambda message: loop.consumer.cancel()) as loop:
        loop.got(1)
        assert loop.bodies == [0]
        assert client.llen("jobs") == 4
        loop.held[0].ack()
    with Loop(server.url, "jobs") as other:
        assert other.got(4) == [1, 2, 3, 4]
        assert not any(message.headers.get("redelivered") for message in other.held)  # nobody had begun them


def test_a_take_under_way_when_the_last_consumer_is_cancelled_is_put_back_at_once(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(3))
    with Loop(server.url, "jobs") as loop:
        assert loop.send() == "take"
        loop.consumer.cancel()
        assert client.hlen("unacked") == 0
        with Loop(server.url, "jobs") as other:
            assert other.got(3) == [0, 1, 2]
        loop.turn_for(0.1)
        assert loop.held == []


def test_closing_during_a_take_puts_its_messages_back(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(3))
    loop = Loop(server.url, "jobs")
    assert loop.send() == "take"
    loop.close()
    assert (loop.held, client.hlen("unacked"), client.zcard("unacked_index")) == ([], 0, 0)
    with Loop(server.url, "jobs") as other:
        assert other.got(3) == [0, 1, 2]


def test_closing_does_not_wait_for_a_ring(server: EmbeddedServer) -> None:
    loop = Loop(server.url, "jobs", polling_interval=LONG_S).idle()
    started = time.monotonic()
    loop.close()
    assert time.monotonic() - started < LONG_S / 6


def test_basic_get_records_what_it_takes(client: redis.Redis, ours: Connection) -> None:
    publish(ours, "jobs", "low", priority=9)
    publish(ours, "jobs", "high", priority=0)
    channel = ours.default_channel
    first, second = channel.basic_get("jobs"), channel.basic_get("jobs")
    assert [first.decode(), second.decode()] == ["high", "low"]
    assert client.hlen("unacked") == 2
    assert channel.basic_get("jobs") is None
    first.ack()
    second.reject()
    assert client.hlen("unacked") == client.zcard("unacked_index") == 0


def test_basic_get_without_acknowledgement_leaves_no_record(client: redis.Redis, ours: Connection) -> None:
    publish(ours, "jobs", "one")
    assert ours.default_channel.basic_get("jobs", no_ack=True).decode() == "one"
    assert client.hlen("unacked") == client.zcard("unacked_index") == 0


def test_a_simple_queue_works(ours: Connection) -> None:
    with ours.SimpleQueue("simple") as simple:
        for number in range(3):
            simple.put(number)
        assert simple.qsize() == 3
        for number in range(3):
            message = simple.get(timeout=5)
            assert message.payload == number
            message.ack()
        with pytest.raises(simple.Empty):
            simple.get_nowait()


def test_two_channels_on_one_queue_share_it(server: EmbeddedServer, client: redis.Redis, ours: Connection) -> None:
    got: list[Any] = []

    def keep(body: Any, message: Any) -> None:
        got.append(body)
        message.ack()

    publish(ours, "jobs", *range(6))
    with ours.channel() as one, ours.channel() as other:
        first = ours.Consumer(queue("jobs"), channel=one, callbacks=[keep])
        second = ours.Consumer(queue("jobs"), channel=other, callbacks=[keep])
        with first, second:
            while len(got) < 6:
                ours.drain_events(timeout=5)
    assert sorted(got) == list(range(6))
    assert client.hlen("unacked") == client.zcard("unacked_index") == 0


@pytest.mark.parametrize(("putter", "taker"), [(STOCK, None), (None, STOCK)], ids=["stock to ours", "ours to stock"])
def test_stock_kombu_at_the_other_end(
    putter: str | None, taker: str | None, server: EmbeddedServer, client: redis.Redis
) -> None:
    kind = {"transport": taker} if taker else {}
    with connect(server.url, *([putter] if putter else [])) as connection:
        publish(connection, "jobs", *range(5), priority=3)
        assert client.llen("jobs\x06\x163") == 5
        with Loop(server.url, "jobs", **kind) as loop:
            assert loop.got(5) == list(range(5))
            for message in loop.held:
                message.ack()
            loop.until(lambda: client.hlen("unacked") == 0)
