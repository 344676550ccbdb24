"""Messages and keys that are not what they should be: set aside or waited for, and in nobody's way."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis
from kombu import Connection

from tests.integration.wire import Loop, publish, queue
from worker.server import EmbeddedServer

pytestmark = pytest.mark.usefixtures("emptied")


GARBAGE = {
    "not JSON": b"this is no JSON",
    "cut off": b'{"body": "abc", "properties": {"delivery_tag": "t1"',
    "empty": b"",
    "not text": b"\xff\xfe\x00",
    "a number": b"42",
    "null": b"null",
    "a list": b"[1, 2]",
    "no properties": b'{"body": ""}',
    "null properties": b'{"body": "", "properties": null}',
    "no delivery tag": b'{"body": "", "properties": {"delivery_info": {}}}',
    "a number as its tag": b'{"body": "", "properties": {"delivery_tag": 7}}',
    "an empty tag": b'{"body": "", "properties": {"delivery_tag": ""}}',
    "too deep": b"[" * 5000 + b"]" * 5000,
    "deep inside": b'{"properties": {"delivery_tag": "t2"}, "headers": ' + b"[" * 5000 + b"]" * 5000 + b"}",
}
# What Lua reads as JSON with a tag, and Python or kombu does not.
HALF_READABLE = {
    "a hexadecimal number": b'{"body": "", "x": 0x10, "properties": {"delivery_tag": "t3", "delivery_info": {}}}',
    "not UTF-8": b'{"body": "\xff", "properties": {"delivery_tag": "t4", "delivery_info": {}}}',
    "a tag that is not UTF-8": b'{"body": "", "properties": {"delivery_tag": "\xff"}}',
    "body not in base64": b'{"body": "a", "properties": {"delivery_tag": "t5", "body_encoding": "base64"}}',
    "unknown encoding": b'{"body": "YQ==", "properties": {"delivery_tag": "t6", "body_encoding": "rot13"}}',
    "unknown type": b'{"x": {"__type__": "gadget", "__value__": 1}, "properties": {"delivery_tag": "t7"}}',
    "bad type": b'{"x": {"__type__": "uuid", "__value__": {"no": 1}}, "properties": {"delivery_tag": "t8"}}',
}


@pytest.mark.parametrize("garbage", [*GARBAGE.values(), *HALF_READABLE.values()], ids=[*GARBAGE, *HALF_READABLE])
def test_a_malformed_message_is_set_aside_and_blocks_nobody(
    garbage: bytes,
    server: EmbeddedServer,
    client: redis.Redis,
    ours: Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(ours, "jobs", "before")
    client.lpush("jobs", garbage)
    publish(ours, "jobs", "after")
    with caplog.at_level(logging.ERROR), Loop(server.url, "jobs") as loop:
        assert loop.got(2) == ["before", "after"]
        for message in loop.held:
            message.ack()
        loop.until(lambda: client.hlen("unacked") == 0)
        assert client.lrange("laya.malformed", 0, -1) == [garbage]
        assert client.zcard("unacked_index") == 0
        assert loop.connection.transport.malformed == 1
    assert "1 malformed message(s) were moved to the list 'laya.malformed'" in caplog.text


def test_at_most_a_thousand_malformed_messages_are_kept(server: EmbeddedServer, client: redis.Redis) -> None:
    client.lpush("jobs", *(f"garbage {number}" for number in range(1100)))
    with Loop(server.url, "jobs") as loop:
        loop.until(lambda: client.llen("jobs") == 0)
    assert client.llen("laya.malformed") == 1000
    assert client.lindex("laya.malformed", 0) == b"garbage 1099"


def test_a_key_of_the_wrong_type_blocks_its_own_queue_alone(
    server: EmbeddedServer, client: redis.Redis, ours: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    client.set("broken", "not a list")
    publish(ours, "jobs", "one")
    with caplog.at_level(logging.ERROR), Loop(server.url, "broken", "jobs", queue_order_strategy="priority") as loop:
        assert loop.got(1) == ["one"]
        publish(ours, "jobs", "two")
        assert loop.got(2) == ["one", "two"]
        client.delete("broken")
        publish(ours, "broken", "mended")
        assert loop.got(3) == ["one", "two", "mended"]
    complaints = [record.message for record in caplog.records if "refused a queue" in record.message]
    assert len(complaints) == 1
    assert "broken: WRONGTYPE" in complaints[0]


def test_a_list_of_malformed_messages_of_the_wrong_type_loses_none(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    client.set("laya.malformed", "not a list")
    client.lpush("broken", "garbage")
    publish(ours, "jobs", "one")
    with Loop(server.url, "broken", "jobs") as loop:
        assert loop.got(1) == ["one"]
        assert client.lrange("broken", 0, -1) == [b"garbage"]
        client.delete("laya.malformed")
        loop.until(lambda: client.lrange("laya.malformed", 0, -1) == [b"garbage"])


def test_a_bell_of_the_wrong_type_delays_no_message(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    with Loop(server.url, "jobs") as loop:
        loop.idle()
        client.set("laya.bell.jobs", "not a list")
        publish(ours, "jobs", "one")
        assert loop.got(1) == ["one"]
        loop.idle()  # the take that found the queue empty has mended the bell
        assert client.type("laya.bell.jobs") == b"none"
        publish(ours, "jobs", "two")
        assert loop.got(2) == ["one", "two"]


def test_records_of_the_wrong_type_stop_the_taking_and_lose_nothing(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    client.set("unacked", "not a hash")
    publish(ours, "jobs", "one")
    with Loop(server.url, "jobs") as loop:
        loop.turn_for(0.3)
        assert (loop.held, client.llen("jobs")) == ([], 1)
        client.delete("unacked")
        assert loop.got(1) == ["one"]


def test_a_drain_without_a_loop_and_without_an_end_outlives_a_refusal(
    server: EmbeddedServer, client: redis.Redis, ours: Connection
) -> None:
    client.set("unacked", "not a hash")
    publish(ours, "jobs", "one")
    got: list[Any] = []
    with ours.Consumer(queue("jobs"), callbacks=[lambda body, message: got.append(body) or message.ack()]):
        with pytest.raises(TimeoutError):
            ours.drain_events(timeout=0.2)
        client.delete("unacked")
        ours.drain_events()
    assert got == ["one"]


def test_basic_get_sets_malformed_messages_aside(client: redis.Redis, ours: Connection) -> None:
    garbage = [b"garbage", HALF_READABLE["body not in base64"], HALF_READABLE["not UTF-8"]]
    for text in garbage:
        client.lpush("jobs", text)
    publish(ours, "jobs", "one")
    assert ours.default_channel.basic_get("jobs").decode() == "one"
    assert client.lrange("laya.malformed", 0, -1) == garbage[::-1]
