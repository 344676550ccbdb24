"""A channel of the queue's wire: publishes and rings in one round trip, has messages taken and recorded in one step.

It keeps kombu's layout in Redis and its ways with connections. How messages are taken is `producer.transport_take`'s,
how they are acknowledged and put back `producer.transport_records`', which queue is full `producer.queue_limit`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, time
from typing import Any, Final

from kombu.log import get_logger
from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.json import dumps
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from producer.checkpoints import QUEUE_PREFIX
from producer.failover import PrimaryConnection, SecurePrimaryConnection
from producer.queue_limit import QueueLimit, lengths
from producer.transport_message import SENT, MalformedMessage, Message, Taken
from producer.transport_records import QoS, Records
from producer.transport_surface import check_installed_kombu
from producer.transport_take import PAUSE_S, Taker

check_installed_kombu()

logger = get_logger(__name__)

BELL_DEPTH: Final = 64
"""Rings kept for a queue that nobody waits on: more workers than this would not wake at once."""

BELL_MS: Final = 10_000
"""Milliseconds that a bell is kept: whoever waits has heard it by then, and nothing is left of a queue that is gone."""

SILENT_S: Final = 4.0
"""Seconds by which an answer may be late. Then the connection counts as dead: the network drops what it is sent."""

QUEUES_KEY: Final = "laya.queues"
"""Sorted set of the queues of ours that were declared, by when; a handful of names."""


class Channel(stock.Channel):
    """One consumer's or producer's side of the wire."""

    QoS = QoS
    Message = Message
    connection_class: Any = PrimaryConnection
    connection_class_ssl: Any = SecurePrimaryConnection

    malformed_key = "laya.malformed"
    """List of messages that are no messages (not JSON, no delivery tag), newest first, at most a thousand."""

    bell_keeping = (BELL_DEPTH, BELL_MS)

    max_queue = 0
    """Messages that may wait for a checkpoint before a publish is refused; 0 for any number."""

    from_transport_options: Any = (*stock.Channel.from_transport_options, "max_queue")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Connect; see kombu's channel.

        Raises:
            ValueError: the transport option `ack_emulation` is off.
        """
        self.records = Records(self)
        self.taker = Taker(self)
        self.limit = QueueLimit(self)
        self._flush_paused_until = 0.0
        self._kept_client: Any = None
        super().__init__(*args, **kwargs)
        if not self.ack_emulation:
            raise ValueError("transport option ack_emulation: False would lose messages, leave it out")

    # --- producing ---

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Append a message to its list and ring, in one round trip.

        Raises:
            QueueFull: as many wait as may.
        """
        batch = kwargs.pop("_publish_batch", None)
        limited = self.limit.concerns(queue)
        if limited:
            (self.limit.admit if batch is None else self.limit.admit_in_batch)(queue)
        properties = message["properties"]
        properties[SENT] = properties.pop(SENT, None) or round(time(), 3)  # the last: it is looked for at the end
        key, text = self._q_for_pri(queue, self._get_message_priority(message, reverse=False)), dumps(message)
        commands: list[tuple[Any, ...]] = [("lpush", key, text)]
        if queue in self._expires:
            commands += [("pexpire", name, self._expires[queue]) for name in self.lists([queue])]
        required, bell = len(commands), self.bell(queue)
        if limited and batch is None:
            commands += [("llen", other) for other in self.lists([queue]) if other != key]
        counted = len(commands)
        # kombu's prefixing client knows LPUSH and PEXPIRE, but not LTRIM.
        trim = ("ltrim", *self.prefixed([bell]), 0, BELL_DEPTH - 1)
        commands += [("lpush", bell, 1), trim, ("pexpire", bell, BELL_MS)]
        if batch is not None:
            for command in commands:
                batch.add(*command)
            return
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for name, *arguments in commands:
                getattr(pipe, name)(*arguments)
            replies = pipe.execute(raise_on_error=False)
        for reply in replies[:required]:  # a ring that failed costs a second, and is no reason to publish again
            if isinstance(reply, Exception):
                raise reply
        if limited:
            self.limit.published(queue, lengths([replies[0], *replies[required:counted]]), key, text)

    def _size(self, queue: str) -> int:
        """How many messages wait; a key of the wrong type holds none, and must not keep a worker from starting."""
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for name in self.lists([queue]):
                pipe.llen(name)
            sizes = pipe.execute(raise_on_error=False)
        for size in sizes:
            if isinstance(size, Exception) and not str(size).startswith("WRONGTYPE"):
                raise size
        return sum(size for size in sizes if isinstance(size, int))

    def _queue_bind(self, exchange: str, *binding: Any) -> None:
        """Write a binding down. On a full server that stays undone: a worker must start to empty it."""
        try:
            super()._queue_bind(exchange, *binding)
            self._remember(exchange)
        except OutOfMemoryError as error:
            logger.warning("a binding of the exchange %r could not be written: %s", exchange, error)

    def _remember(self, exchange: str) -> None:
        """Note that this queue of ours exists: a worker answers for those that nobody reads."""
        if exchange.startswith(f"{QUEUE_PREFIX}."):
            try:
                with self.conn_or_acquire() as client:
                    client.zadd(QUEUES_KEY, {exchange: round(time())})
            except ResponseError as error:  # a user without the right: its requests are published all the same
                logger.debug("the queue %r could not be noted: %s", exchange, error)

    # --- consuming ---

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask for messages; see `Taker`."""
        self.taker.start(timeout or self.brpop_timeout or 1)

    def _brpop_read(self, **options: Any) -> bool:
        """Read what was asked for, and hand it out."""
        self.taker.read(**options)
        return True

    def send(self, command: Sequence[Any]) -> None:
        """Send a command on the polled connection, whose reply the poller will see."""
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at: float | None = monotonic()  # type: ignore[assignment]  # kombu declares it by its None
        connection.send_command(*command)

    def drop_if_silent(self) -> None:
        """Disconnect when the answer to what was asked last is overdue; the next turn connects anew."""
        connection, sent_at = self._in_poll, self._brpop_sent_at
        if not connection or sent_at is None:
            return
        silent = monotonic() - sent_at - (self.brpop_timeout or 1)
        socket = getattr(connection, "_sock", None)
        if silent < SILENT_S or socket is None or stock._socket_readable(socket):
            return
        logger.warning("the broker has not answered for %.0f seconds: connecting anew", silent)
        connection.disconnect()

    def answered(self) -> None:
        """Nothing is under way on the polled connection any more: time for what kombu does then."""
        self._in_poll: Any = None
        self._flush_brpop_reauth()

    def _receive(self) -> bool:
        """Read what was broadcast. A ping that a busy server refuses says nothing of the subscription."""
        try:
            return bool(super()._receive())
        except ResponseError as error:
            if not str(error).startswith("BUSY"):
                raise
            logger.warning("the broker is busy with a script of somebody: %s", error)
            return False

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> virtual.Message | None:  # noqa: ARG002 - kombu's
        """Take one message now; None if there is none."""
        while taken := self.taker.take_one(queue):
            tag, raw = taken
            try:
                message = self.Message(Taken.read(raw), channel=self)
            except MalformedMessage as error:
                self.records.set_aside(tag, raw, str(error))
                continue
            with self.conn_or_acquire() as client:
                self._maybe_update_queues_expire(client, queue)
            if no_ack:
                self.records.acknowledge(tag)
            else:
                self.qos.append(message, message.delivery_tag)
            return message
        return None

    def turn(self) -> None:
        """Send acknowledgements that no take carries. The poller calls it once a turn, after the takes are sent."""
        if not self.records.noted or (self.taker.in_flight == "take" and self.qos.can_consume()):
            return
        if monotonic() < self._flush_paused_until:
            return
        try:
            self.records.flush()
        except ResponseError as error:
            self._flush_paused_until = monotonic() + PAUSE_S
            logger.error("the broker refused acknowledgements, trying again: %s", error)

    # --- leaving ---

    def close(self) -> None:
        """Send what is noted, put back what was taken and not handed out, and disconnect."""
        if not self.closed:
            self._leave()
        super().close()
        self.disconnect()

    def _basic_cancel(self, consumer_tag: str) -> None:
        super()._basic_cancel(consumer_tag)
        if not self.active_queues and self.taker.in_flight == "take":
            # The worker stops, perhaps after a long task: what is on its way here goes to others meanwhile.
            self.attempt(self.taker.settle, "put back what nobody here will work on")

    def _leave(self) -> None:
        self.attempt(self.taker.settle, "put back what nobody here will work on")
        self.attempt(self.records.flush, "send the last acknowledgements")
        if self._in_poll:  # a wait: kombu would see it out, and then use the connection
            self.client.connection.disconnect()

    def attempt(self, step: Callable[[], None], what: str) -> None:
        """Do now what the server's visibility timeout will do later, if the server can be reached."""
        try:
            step()
        except (*self.connection_errors, RedisError) as error:
            logger.warning("could not %s: their messages will be delivered again (%s)", what, error)

    def _on_connection_disconnect(self, connection: Any) -> None:
        if self._in_poll is connection:
            self.taker.lost()
        super()._on_connection_disconnect(connection)

    def disconnect(self) -> None:
        """Close the connections of commands that are not polled."""
        if self._kept_client is not None:
            self._kept_client.connection_pool.disconnect()

    def _after_fork(self) -> None:
        super()._after_fork()
        self._kept_client = None

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """A client for commands. One that is used after the channel's end (a late acknowledgement) leaves none open."""
        try:
            yield client or self._create_client()
        finally:
            if self.closed and not client:
                self.disconnect()

    def _create_client(self, asynchronous: bool = False) -> Any:
        # kombu builds a client object for each command, which was a seventh of a worker's time. This one outlives the
        # channel: what is acknowledged after the channel has lost its server still is.
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._kept_client is None:
            self._kept_client = super()._create_client()
        return self._kept_client

    # --- what the other parts of the wire ask of a channel ---

    @property
    def has_turns(self) -> bool:
        """Whether an event loop comes by again and again, so that what can be done together may wait for its turn."""
        return self.connection is not None and self.connection.in_event_loop

    def bell(self, queue: str) -> str:
        """The doorbell of a queue: a list that holds a ring for each worker that should look."""
        return f"laya.bell.{queue}"

    def lists(self, queues: Iterable[str]) -> list[str]:
        """The lists of these queues in the order in which they are read: queue by queue within each priority."""
        queues = tuple(queues)
        return [self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]

    def homes(self, message: dict[str, Any], exchange: str, routing_key: str) -> tuple[list[str], list[str]]:
        """The lists that a message goes back to, and their bells; the key names the queue when no binding does.

        Raises:
            ValueError: the record names no queue at all.
        """
        queues = [queue for queue in self._lookup(exchange, routing_key) if queue] or [routing_key]
        if not all(queues):
            raise ValueError("it names no queue")
        priority = self._get_message_priority(message, reverse=False)
        return [self._q_for_pri(queue, priority) for queue in queues], [self.bell(queue) for queue in queues]

    def prefixed(self, keys: Iterable[str]) -> list[str]:
        """Keys as the server knows them, for commands that kombu's client does not prefix."""
        return [self.global_keyprefix + key for key in keys]

    def count_malformed(self, count: int, why: str) -> None:
        """Count messages that were moved to the list of malformed ones, and say so."""
        if self.connection is not None:
            self.connection.malformed += count
        logger.error("%d malformed message(s) were moved to the list %r: %s", count, self.malformed_key, why)


class SentinelChannel(Channel, stock.SentinelChannel):
    """A channel whose server is the primary that Redis Sentinel names."""

    connection_class = stock.SentinelChannel.connection_class
    connection_class_ssl = stock.SentinelChannel.connection_class_ssl
    from_transport_options: Any = (*stock.SentinelChannel.from_transport_options, "max_queue")
