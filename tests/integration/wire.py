"""Consumers and producers on the queue's wire, one step below Celery: what a worker's loop does, turned by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import redis
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub

from tests.waiting import wait_until

OURS = "producer.transport:Transport"
STOCK = "redis"

LONG_S = 60.0
"""As `polling_interval`: a consumer waits so long for a ring, so that whoever does not wait for it has heard one."""


def queue(name: str, **options: Any) -> Queue:
    """A queue as a worker of ours declares it."""
    return Queue(name, Exchange(name), routing_key=name, **options)


def connect(url: str, transport: str = OURS, **options: Any) -> Connection:
    return Connection(url, transport=transport, transport_options=options)


def publish(connection: Connection, name: str, *bodies: Any, **options: Any) -> None:
    """Publish each body, in order, to the queue of that name."""
    producer = Producer(connection)
    for body in bodies:
        producer.publish(body, exchange=name, routing_key=name, declare=[queue(name)], serializer="json", **options)


class Loop:
    """An event loop with one consumer, as a worker has it; `held` are the messages that it got."""

    def __init__(
        self,
        url: str,
        *names: str,
        prefetch: int = 0,
        transport: str = OURS,
        no_ack: bool = False,
        on_message: Callable[[Any], None] | None = None,
        queues: Sequence[Queue] = (),
        **options: Any,
    ) -> None:
        self.held: list[Any] = []
        self._on_message = on_message
        self.hub = Hub()
        self.hub.call_repeatedly(0.01, lambda: None)  # no turn takes longer, so a condition is seen soon
        self.connection = connect(url, transport, **options)
        self.connection.connect()
        self.connection.transport.register_with_event_loop(self.connection.connection, self.hub)
        self.channel = self.connection.default_channel
        self.consumer = Consumer(
            self.channel,
            list(queues) or [queue(name) for name in names],
            on_message=self._receive,
            no_ack=no_ack,
            prefetch_count=prefetch or None,
        )
        self.consumer.consume()

    def _receive(self, message: Any) -> None:
        self.held.append(message)
        if self._on_message is not None:
            self._on_message(message)

    @property
    def bodies(self) -> list[Any]:
        return [message.decode() for message in self.held]

    def turn(self) -> None:
        self.hub.run_once()

    def send(self) -> str | None:
        """The first half of a turn: send what is to be sent, and say what is under way now."""
        self.connection.transport.cycle.on_poll_start()
        under_way: str | None = self.channel.taker.in_flight
        return under_way

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Turn until the condition is true, and return what it said."""
        deadline = time.monotonic() + seconds
        while True:
            late = time.monotonic() > deadline
            if value := condition():
                return value
            assert not late, "the loop turned in vain"
            self.turn()

    def got(self, count: int) -> list[Any]:
        """Turn until that many messages have come, and return their bodies."""
        self.until(lambda: len(self.held) >= count)
        return self.bodies

    def idle(self) -> Loop:
        """Turn until the consumer waits for a ring."""
        self.until(lambda: self.channel.taker.in_flight == "wait")
        return self

    def turn_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > until, seconds + 5)

    def crash(self) -> None:
        """Go as a killed process does: nothing is sent, nothing is put back."""
        self.connection.transport.cycle.close()
        for channel in self.connection.transport.channels:
            channel.qos._on_collect.cancel()
            channel.__dict__["client"].connection.disconnect()
            channel._disconnect_pools()
            channel.closed = True
        self._close_hub()

    def close(self) -> None:
        self.connection.close()
        self._close_hub()

    def _close_hub(self) -> None:
        self.hub.timer.clear()
        self.hub.on_tick.clear()
        self.hub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def cut(client: redis.Redis) -> None:
    """Cut every connection but this one, and wait until somebody has connected again."""
    before = {one["id"] for one in client.client_list()}
    for kind in ("normal", "pubsub"):
        client.client_kill_filter(_type=kind, skipme=True)
    wait_until(lambda: {one["id"] for one in client.client_list()} - before, what="a new connection")


class Commands:
    """What the server was asked between two moments."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._before = self._calls()

    def _calls(self) -> dict[str, int]:
        stats: Any = self._client.info("commandstats")
        return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}

    def since(self) -> dict[str, int]:
        now = self._calls()
        return {name: calls - self._before.get(name, 0) for name, calls in now.items() if name != "info"}


@contextmanager
def connected(url: str, transport: str = OURS, **options: Any) -> Iterator[Connection]:
    connection = connect(url, transport, **options)
    try:
        yield connection
    finally:
        connection.close()
