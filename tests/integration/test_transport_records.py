"""What becomes of messages after they are taken: acknowledged together, put back in order, restored when overdue."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest
import redis
from kombu import Connection

from tests.integration.wire import OURS, STOCK, Commands, Loop, connected, publish
from worker.server import EmbeddedServer

pytestmark = pytest.mark.usefixtures("emptied")


def records(client: redis.Redis) -> tuple[int, int]:
    """How many there are, and how many their index knows."""
    return client.hlen("unacked"), client.zcard("unacked_index")


def drop_connections(client: redis.Redis) -> None:
    """Cut every connection of consumers and producers; `client` itself stays."""
    client.client_kill_filter(_type="normal", skipme=True)


# --- acknowledging ---


def test_acknowledgements_travel_together(server: EmbeddedServer, client: redis.Redis, ours: Connection) -> None:
    publish(ours, "jobs", *range(40))
    with Loop(server.url, "jobs", prefetch=40) as loop:
        loop.got(40)
        commands = Commands(client)
        for message in loop.held:
            message.ack()
        loop.until(lambda: records(client) == (0, 0))
        assert commands.since()["hdel"] == 1


def test_a_take_carries_what_would_else_be_sent_beside_a_wait(server: EmbeddedServer, ours: Connection) -> None:
    publish(ours, "jobs", "one")
    with Loop(server.url, "jobs") as loop:
        loop.got(1)
        loop.held[0].ack()
        assert loop.send() == "take"
        assert not loop.channel.records.noted


def test_acknowledgements_do_not_wait_for_a_message(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    with Loop(server.url, "jobs") as loop:
        publish(ours, "jobs", "one")
        loop.got(1)
        loop.idle()
        loop.held[0].ack()
        loop.turn()
        assert records(client) == (0, 0)


def test_acknowledgements_are_sent_when_there_is_no_room_and_nothing_to_read(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(4))
    with Loop(server.url, "jobs", prefetch=4) as loop:
        loop.got(4)
        loop.channel.qos.room = lambda: 0
        loop.held[0].ack()
        loop.until(lambda: records(client) == (3, 3))
        loop.consumer.cancel()
        loop.held[1].ack()
        loop.until(lambda: records(client) == (2, 2))


def test_without_a_loop_an_acknowledgement_is_sent_at_once(client: redis.Redis, ours: Connection) -> None:
    publish(ours, "jobs", "one")
    message = ours.default_channel.basic_get("jobs")
    assert records(client) == (1, 1)
    message.ack()
    assert records(client) == (0, 0)


def test_closing_sends_what_was_noted(server: EmbeddedServer, client: redis.Redis, ours: Connection) -> None:
    publish(ours, "jobs", *range(3))
    loop = Loop(server.url, "jobs")
    loop.got(3)
    for message in loop.held:
        message.ack()
    loop.close()
    assert (records(client), client.llen("jobs")) == ((0, 0), 0)


def test_acknowledgements_that_a_take_carried_into_a_lost_connection_are_sent_again(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(2))
    loop = Loop(server.url, "jobs", prefetch=2)
    loop.got(2)
    client.client_pause(2000, all=False)  # writes are held, so the take is not executed
    loop.held[0].ack()
    assert loop.send() == "take"
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    client.client_unpause()
    with pytest.raises(redis.exceptions.ConnectionError):
        loop.until(lambda: False)
    assert records(client) == (2, 2)
    loop.close()
    assert (records(client), client.llen("jobs")) == ((0, 0), 1)


def test_a_message_acknowledged_after_its_connection_is_gone_is_not_delivered_again(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", "one")
    loop = Loop(server.url, "jobs")
    loop.got(1)
    loop.channel.qos.at_work = lambda: {loop.held[0].delivery_tag}
    loop.close()
    assert (records(client), client.llen("jobs")) == ((1, 1), 0)
    connections = len(client.client_list())
    loop.held[0].ack()
    assert (records(client), client.llen("jobs")) == ((0, 0), 0)
    assert len(client.client_list()) == connections


def test_a_connection_that_kombu_drops_as_silent_loses_no_acknowledgement(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(2))
    with Loop(server.url, "jobs", prefetch=2) as loop:
        loop.got(2)
        client.client_pause(2000, all=False)
        loop.held[0].ack()
        assert loop.send() == "take"
        loop.channel._brpop_sent_at -= 100
        loop.connection.transport.cycle.maybe_check_brpop_health()
        assert loop.channel.taker.in_flight is None
        client.client_unpause()
        loop.until(lambda: records(client) == (1, 1))
        publish(ours, "jobs", "more")
        assert loop.got(3)[-1] == "more"


def test_a_late_rejection_leaves_no_connection_open(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(2))
    loop = Loop(server.url, "jobs")
    loop.got(2)
    loop.channel.qos.at_work = lambda: {message.delivery_tag for message in loop.held}
    loop.close()
    connections = len(client.client_list())
    loop.held[0].reject()
    loop.held[1].requeue()
    assert (records(client), client.llen("jobs")) == ((0, 0), 1)
    assert len(client.client_list()) == connections


def test_refused_acknowledgements_are_sent_later(
    server: EmbeddedServer, client: redis.Redis, ours: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    publish(ours, "jobs", "one")
    with Loop(server.url, "jobs", prefetch=1) as loop:
        loop.got(1)
        loop.channel.qos.room = lambda: 0
        record = client.hgetall("unacked")
        client.delete("unacked")
        client.set("unacked", "no hash")
        loop.held[0].ack()
        with caplog.at_level(logging.ERROR):
            loop.until(lambda: "refused acknowledgements" in caplog.text)
        client.delete("unacked")
        client.hset("unacked", mapping=record)
        loop.until(lambda: records(client) == (0, 0))


@pytest.mark.parametrize("transport", [OURS, STOCK])
def test_rejected_messages_are_dropped_or_go_behind_the_others(
    transport: str, server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(3))
    with Loop(server.url, "jobs", prefetch=2, transport=transport) as loop:
        loop.got(2)
        loop.held[0].reject()
        loop.held[1].requeue()
        assert loop.got(4)[2:] == [2, 1]
        assert loop.held[3].headers["redelivered"] is True


# --- putting back ---


def test_closing_puts_unacknowledged_messages_back_in_their_order_and_with_their_priority(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    for priority in (0, 6):
        publish(ours, "jobs", *(f"{priority}-{number}" for number in range(3)), priority=priority)
    with Loop(server.url, "jobs") as loop:
        order = loop.got(6)
        loop.held[1].ack()
    assert (records(client), client.llen("jobs"), client.llen("jobs\x06\x166")) == ((0, 0), 2, 3)
    with Loop(server.url, "jobs") as other:
        assert other.got(5) == [order[0], *order[2:]]


def test_what_is_being_worked_on_is_not_put_back_when_its_connection_is_lost(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(3))
    loop = Loop(server.url, "jobs")
    loop.got(3)
    loop.channel.qos.at_work = lambda: {message.delivery_tag for message in loop.held[:2]}
    loop.close()
    assert (records(client), client.llen("jobs")) == ((2, 2), 1)


def test_a_message_goes_back_to_the_queue_that_it_came_from_and_to_no_other(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    from kombu import Exchange, Producer, Queue

    both = Exchange("both", type="topic")
    queues = [Queue("a", both, routing_key="x.#"), Queue("b", both, routing_key="#.y")]
    Producer(ours).publish("copy", exchange=both, routing_key="x.y", declare=queues, serializer="json")
    assert (client.llen("a"), client.llen("b")) == (1, 1)
    with Loop(server.url, queues=queues[:1]) as loop:
        loop.got(1)
        client.delete("_kombu.binding.both")  # as after a FLUSHALL and a new publish
    assert (client.llen("a"), client.llen("b")) == (1, 1)


def crash_with(server: EmbeddedServer, ours: Connection, count: int) -> None:
    """Have a consumer take messages, and crash: they are overdue a second later."""
    publish(ours, "jobs", *range(count))
    crashed = Loop(server.url, "jobs", visibility_timeout=1)
    crashed.got(count)
    crashed.crash()


def test_a_crashed_consumer_s_messages_come_back_after_the_visibility_timeout(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", *range(5))
    crashed = Loop(server.url, "jobs", visibility_timeout=1)
    crashed.got(5)
    taken = time.monotonic()
    crashed.crash()
    assert records(client) == (5, 5)
    with Loop(server.url, "jobs", visibility_timeout=1, unacked_restore_interval=0.2) as loop:
        assert loop.got(5) == list(range(5))
        assert time.monotonic() - taken >= 1
        assert all(message.headers["redelivered"] for message in loop.held)
        assert all(message.delivery_info["redelivered"] for message in loop.held)


def test_two_sweepers_put_an_overdue_message_back_once(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    crash_with(server, ours, 50)
    got: list[Any] = []

    def take(message: Any) -> None:
        got.append(message)
        message.ack()  # at once: it would be overdue again a second later

    one = Loop(server.url, "jobs", visibility_timeout=1, unacked_restore_interval=0.1, on_message=take)
    other = Loop(server.url, "jobs", visibility_timeout=1, unacked_restore_interval=0.1, on_message=take)
    deadline = time.monotonic() + 20
    while len(got) < 50 and time.monotonic() < deadline:
        one.turn()
        other.turn()
    one.close()
    other.close()
    assert sorted(message.decode() for message in got) == list(range(50))
    assert (records(client), client.llen("jobs")) == ((0, 0), 0)


def test_a_sweeper_that_comes_late_leaves_a_new_taker_s_record_alone(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", "one")
    with Loop(server.url, "jobs") as loop:
        loop.got(1)
        tag = loop.held[0].delivery_tag
        overdue_until = client.zscore("unacked_index", tag) - 1  # the sweeper saw an older record of the same message
        assert loop.channel.records._restore([tag], "RPUSH", overdue_until) == []
        assert (records(client), client.llen("jobs")) == ((1, 1), 0)
        loop.held[0].ack()


def test_a_message_restored_while_it_is_worked_on_ends_when_both_workers_have_finished(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    publish(ours, "jobs", "one")
    with (
        Loop(server.url, "jobs", visibility_timeout=1) as slow,
        Loop(server.url, "jobs", visibility_timeout=1, unacked_restore_interval=0.1) as other,
    ):
        slow.got(1)
        other.got(1)
        slow.held[0].ack()
        slow.until(lambda: records(client) == (0, 0))
        other.held[0].ack()
        other.idle().turn()
        assert (records(client), client.llen("jobs")) == ((0, 0), 0)


@pytest.mark.parametrize(("crasher", "sweeper"), [(STOCK, OURS), (OURS, STOCK)], ids=["ours sweeps", "stock sweeps"])
def test_records_are_kombu_s_own(crasher: str, sweeper: str, server: EmbeddedServer, client: redis.Redis) -> None:
    options = {"visibility_timeout": 1, "unacked_restore_interval": 0.2, "unacked_restore_throttle": 1}
    with connected(server.url) as ours:
        publish(ours, "jobs", *range(3), priority=3)
    crashed = Loop(server.url, "jobs", transport=crasher, **options)
    crashed.got(3)
    crashed.crash()
    with Loop(server.url, "jobs", transport=sweeper, **options) as loop:
        assert sorted(loop.got(3)) == [0, 1, 2]
        assert all(message.headers["redelivered"] for message in loop.held)
        for message in loop.held:
            message.ack()
        loop.until(lambda: records(client) == (0, 0))


def test_a_record_that_cannot_be_read_is_set_aside_and_blocks_no_other(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    broken = {"a": "no JSON", "b": "[1, 2]", "c": '[{"properties": {}}, "", ""]', "d": '[5, "", "jobs"]'}
    client.hset("unacked", mapping=broken)
    client.zadd("unacked_index", dict.fromkeys(broken, 1.0))
    good = {"headers": {}, "body": "MQ==", "content-type": "application/json", "content-encoding": "utf-8"}
    good["properties"] = {"delivery_tag": "e", "body_encoding": "base64", "delivery_info": {}}
    client.hset("unacked", "e", json.dumps([good, "", "jobs"]))
    client.zadd("unacked_index", {"e": 2.0})
    with Loop(server.url, "jobs", unacked_restore_interval=0.1) as loop:
        assert loop.got(1) == [1]
        loop.until(lambda: sorted(client.lrange("laya.malformed", 0, -1)) == sorted(map(str.encode, broken.values())))
        assert records(client) == (1, 1)
        loop.held[0].ack()


def test_an_index_entry_without_a_record_is_forgotten(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    client.zadd("unacked_index", {"orphan": 1.0})
    with Loop(server.url, "jobs", unacked_restore_interval=0.1) as loop:
        loop.until(lambda: client.zcard("unacked_index") == 0)


def test_an_overdue_message_whose_queue_has_the_wrong_type_keeps_its_record(
    server: EmbeddedServer, client: redis.Redis, ours: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    crash_with(server, ours, 1)
    client.set("jobs", "no list")
    with (
        caplog.at_level(logging.ERROR),
        Loop(server.url, "others", visibility_timeout=1, unacked_restore_interval=0.1) as loop,
    ):
        loop.until(lambda: "could not be put back" in caplog.text)
        assert records(client) == (1, 1)
        client.delete("jobs")
        loop.until(lambda: client.llen("jobs") == 1)


def test_many_overdue_messages_come_back_in_a_few_sweeps(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    crash_with(server, ours, 1500)
    with Loop(server.url, "others", visibility_timeout=1, unacked_restore_interval=0.1) as loop:
        loop.until(lambda: client.llen("jobs") == 1500)
    with Loop(server.url, "jobs") as loop:
        assert sorted(loop.got(1500)) == list(range(1500))
