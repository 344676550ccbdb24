"""The queue's wire: kombu's Redis transport, with messages taken and recorded in one step.

kombu pops a message and records it as unacknowledged in a second step; a worker that dies in between loses it. Here one
script does both, for as many messages as the worker has room for, and carries the acknowledgements that have gathered.
While its queues are empty a worker waits on their doorbells, small lists that our producers ring. Lists, priorities,
unacknowledged records and bindings keep kombu's layout, so that stock Celery works beside it on the same queues.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import Any, Final, Literal

from kombu.log import get_logger
from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from producer.transport_scripts import RESTORE, TAKE
from producer.transport_surface import check_installed_kombu

check_installed_kombu()

logger = get_logger(__name__)

TAKE_AT_MOST: Final = 64
"""Messages in one take, whatever the room: what follows waits no longer than these take to hand out."""

TAKE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of messages after which a take ends: one reply must not hold a batch of huge messages in memory."""

BELL_DEPTH: Final = 64
"""Rings kept for a queue that nobody waits on: more workers than this would not wake at once."""

SWEEP_AT_LEAST_EVERY_S: Final = 10.0
"""Seconds between looks for overdue records when none is expected: a stock worker records by its own clock."""

PAUSE_S: Final = 1.0
"""Seconds before a take is tried again that the server refused (a key of the wrong type, no permission)."""

Step = Literal["take", "wait", "look"]
"""What the connection is asked: take messages; wait on the doorbells; look whether somebody did not ring."""

MALFORMED: Final = "laya.malformed"
"""List of messages that are no messages (not JSON, no delivery tag), newest first, at most a thousand."""


_COMMAND_OF: Final[dict[Step | None, str]] = {"take": "EVALSHA", "wait": "BRPOP", "look": "EXISTS", None: "EVALSHA"}


class QoS(stock.QoS):
    """Unacknowledged messages, recorded by the take itself and acknowledged together once a loop."""

    room: Callable[[], int] | None = None
    """Messages that the worker can start now, where it knows; set beside `worker_disable_prefetch`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See kombu's QoS."""
        super().__init__(*args, **kwargs)
        self._next_sweep = 0.0  # monotonic() from which on a record may be overdue

    def append(self, message: Any, delivery_tag: str) -> None:
        """Remember a message; one that came from a take is on record in Redis already."""
        if delivery_tag in self.channel.recorded:
            self.channel.recorded.discard(delivery_tag)
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Note an acknowledgement; the next take carries it, or the next turn of the loop."""
        self.channel.acknowledge(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def takeable(self) -> int:
        """How many messages may be taken now: never more than the consumer has room for."""
        by_prefetch = self.can_consume_max_estimate()
        limit = TAKE_AT_MOST if by_prefetch is None else min(TAKE_AT_MOST, by_prefetch)
        if self.room is not None:
            return max(0, min(limit, self.room()))
        # worker_disable_prefetch replaces can_consume on the instance, and that alone tells no number.
        return min(limit, 1) if "can_consume" in vars(self) else limit

    def restore_visible(self, start: int = 0, num: int | None = 10, interval: int = 10) -> None:  # noqa: ARG002
        """Put overdue messages back. Asks the server only when the oldest record can have become overdue."""
        if monotonic() < self._next_sweep:
            return
        with self.channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            oldest, (seconds, micros) = pipe.zrange(self.unacked_index_key, 0, 0, withscores=True).time().execute()
        now = seconds + micros / 1_000_000  # of the server, whose clock every take records by
        # A message that is taken later is due later, so nothing is missed until the oldest one is due.
        due_in = (oldest[0][1] if oldest else now) + self.visibility_timeout - now
        self._next_sweep = monotonic() + min(max(due_in, 0.0), SWEEP_AT_LEAST_EVERY_S)
        if due_in <= 0:
            self._restore_overdue(now, num)

    def _restore_overdue(self, now: float, num: int | None) -> None:
        with self.channel.conn_or_acquire() as client:
            overdue = client.zrange(
                self.unacked_index_key, "-inf", now - self.visibility_timeout, byscore=True, offset=0, num=num or -1
            )
            for tag in overdue:
                self.restore_by_tag(bytes_to_str(tag), client)

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        """Put one unacknowledged message back on its queues; whoever removes its record first does so, alone."""
        channel = self.channel
        with channel.conn_or_acquire(client) as connected:
            record = connected.hget(self.unacked_key, tag)
            if record is None:
                connected.zrem(self.unacked_index_key, tag)
                return
            message, exchange, routing_key = loads(bytes_to_str(record))
            queues = channel.queues_to_restore_to(message, exchange, routing_key)
            priority = channel._get_message_priority(message, reverse=False)
            lists = [channel._q_for_pri(queue, priority) for queue in queues]
            bells = [channel.bell(queue) for queue in queues]
            keys = channel.prefixed([self.unacked_key, self.unacked_index_key, *lists, *bells])
            end = "RPUSH" if not leftmost else "LPUSH"
            connected.eval(RESTORE, len(keys), *keys, tag, dumps(message), end, len(lists), BELL_DEPTH)


class Channel(stock.Channel):
    """One consumer's or producer's side of the wire."""

    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Connect; see kombu's channel."""
        self.recorded: set[str] = set()  # taken, not yet handed to the consumer
        self._acknowledged: deque[str] = deque()
        self._sent_acknowledgements: list[str] = []
        self._taken: deque[tuple[str, str]] = deque()
        self._next: Step = "take"
        self._in_flight: Step | None = None
        self._script_known = True
        self._paused_until = 0.0
        self._asked: list[str] = []
        self._kept_client: Any = None
        super().__init__(*args, **kwargs)

    # --- producing ---

    def bell(self, queue: str) -> str:
        """The doorbell of a queue: a list that holds a ring for each worker that should look."""
        return f"laya.bell.{queue}"

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        """Append a message to its list and ring, in one round trip."""
        key = self._q_for_pri(queue, self._get_message_priority(message, reverse=False))
        commands: list[tuple[Any, ...]] = [("lpush", key, dumps(message))]
        if queue in (self._expires or ()):
            expiring = [*(self._q_for_pri(queue, step) for step in self.priority_steps), self.bell(queue)]
            commands += [("pexpire", name, self._expires[queue]) for name in expiring]
        commands += [("lpush", self.bell(queue), 1), ("ltrim", self.bell(queue), 0, BELL_DEPTH - 1)]
        batch = kwargs.pop("_publish_batch", None)
        if batch is not None:
            for command in commands:
                batch.add(*command)
            return
        with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            for name, *arguments in commands:
                getattr(pipe, name)(*arguments)
            pipe.execute()

    # --- acknowledging ---

    def acknowledge(self, delivery_tag: str) -> None:
        """Note an acknowledgement. Without an event loop there is no next turn to carry it, so it is sent at once."""
        self._acknowledged.append(delivery_tag)
        if not self.connection.in_event_loop:
            self.flush_acknowledgements()

    def flush_acknowledgements_if_idle(self) -> None:
        """Send acknowledgements that no take is about to carry."""
        if self._acknowledged and (self._in_flight in {"wait", "look"} or not self.qos.can_consume()):
            self.flush_acknowledgements()

    def flush_acknowledgements(self) -> None:
        """Send every noted acknowledgement now."""
        tags = self._next_acknowledgements()
        if not tags:
            return
        try:
            with self.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                pipe.zrem(self.unacked_index_key, *tags)
                pipe.hdel(self.unacked_key, *tags)
                pipe.execute()
        except BaseException:
            self._acknowledged.extendleft(tags)
            raise

    def _next_acknowledgements(self) -> list[str]:
        tags = []
        while self._acknowledged:
            tags.append(self._acknowledged.popleft())
        return tags

    # --- taking ---

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Send the next command: a take, a wait when the last take emptied the queues, a look when nobody rang."""
        if self._taken:
            self._hand_out()
        if monotonic() < self._paused_until:
            return
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        if self._next == "take":
            room = self.qos.takeable()
            if room < 1:
                return
            command = self._take_command(queues, room)
        elif self._next == "wait":
            bells = self.prefixed(self.bell(queue) for queue in queues)
            command = ["BRPOP", *bells, timeout or self.brpop_timeout or 1]
        else:
            command = ["EXISTS", *self.prefixed(self._lists(queues))]
        self._in_flight = self._next
        connection = self._in_poll = self.client.connection
        self._brpop_sent_at: float | None = monotonic()  # type: ignore[assignment]  # kombu declares it by its None
        connection.send_command(*command)

    def _lists(self, queues: list[str]) -> list[str]:
        return [self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]

    def _take_command(self, queues: list[str], room: int) -> list[Any]:
        self._asked = [queue for _ in self.priority_steps for queue in queues]
        lists, bells = self._lists(queues), [self.bell(queue) for queue in queues]
        keys = self.prefixed([self.unacked_key, self.unacked_index_key, MALFORMED, *lists, *bells])
        self._sent_acknowledgements = self._next_acknowledgements()
        script = ["EVALSHA", TAKE.sha] if self._script_known else ["EVAL", TAKE.text]
        return [*script, len(keys), *keys, len(lists), room, TAKE_BYTES, *self._sent_acknowledgements]

    def _brpop_read(self, **options: Any) -> bool:
        """Read the reply to the command in flight, and hand out what a take brought."""
        client, step = self.client, self._in_flight
        try:
            reply = client.parse_response(client.connection, _COMMAND_OF[step], **options)
        except self.connection_errors:
            self._return_acknowledgements()
            client.connection.disconnect()
            raise
        except ResponseError as error:
            self._return_acknowledgements()
            self._refused(error)
            raise Empty from None
        finally:
            self._in_poll: Any = None
            self._in_flight = None
            self._flush_brpop_reauth()
        if step == "take":
            self._took(reply)
        elif step == "wait":
            self._next = "take" if reply else "look"
        else:
            self._next = "take" if reply else "wait"
        if not self._taken:
            raise Empty
        self._hand_out()
        return True

    def _took(self, reply: list[Any]) -> None:
        self._script_known = True
        self._sent_acknowledgements = []
        malformed, drained, *taken = reply
        self._next = "wait" if drained else "take"
        if malformed:
            self._report_malformed(malformed)
        for place, raw in zip(taken[::2], taken[1::2], strict=True):
            self._taken.append((self._asked[place], bytes_to_str(raw)))

    def _hand_out(self) -> None:
        """Give taken messages to their consumers; what a failing consumer leaves is handed out at the next turn."""
        for queue in dict.fromkeys(queue for queue, _ in self._taken):
            self._queue_cycle.rotate(queue)
        while self._taken:
            queue, raw = self._taken.popleft()
            message = loads(raw)
            self.recorded.add(message["properties"]["delivery_tag"])
            self.connection._deliver(message, queue)

    def _return_acknowledgements(self) -> None:
        self._acknowledged.extendleft(reversed(self._sent_acknowledgements))
        self._sent_acknowledgements = []

    def _refused(self, error: ResponseError) -> None:
        """Decide what a refused command means: a script to send again, a server to leave, or a pause."""
        if isinstance(error, NoScriptError):
            self._script_known = False
        elif isinstance(error, ReadOnlyError):
            # A failover made this server a replica: connect anew, to whichever is the primary now.
            self.client.connection.disconnect()
            raise ConnectionError("the broker became read-only: reconnecting to the primary") from error
        else:
            self._paused_until = monotonic() + PAUSE_S
            logger.error("the broker refused to give messages, trying again in %.0f s: %s", PAUSE_S, error)

    def _report_malformed(self, count: int) -> None:
        self.connection.malformed += count
        logger.error(
            "%d malformed message(s) (not JSON, or no delivery tag) were moved to the list %r", count, MALFORMED
        )

    # --- what else of kombu's channel has to know of bells, records and the kept client ---

    def queues_to_restore_to(self, message: dict[str, Any], exchange: str, routing_key: str) -> list[str]:
        """Where a message goes back to, marked as redelivered; the routing key names the queue when no binding does."""
        message.setdefault("headers", {})["redelivered"] = True
        message["properties"].setdefault("delivery_info", {})["redelivered"] = True
        return [queue for queue in self._lookup(exchange, routing_key) if queue] or [routing_key]

    def prefixed(self, keys: Iterable[str]) -> list[str]:
        """Keys as the server knows them, for commands that kombu's client does not prefix."""
        return [self.global_keyprefix + key for key in keys]

    def _create_client(self, asynchronous: bool = False) -> Any:
        # kombu builds a client object for each command, which was a seventh of a worker's time.
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._kept_client is None:
            self._kept_client = super()._create_client()
        return self._kept_client

    def _disconnect_pools(self) -> None:
        self._kept_client = None
        super()._disconnect_pools()

    def _purge(self, queue: str) -> int:
        with self.conn_or_acquire() as client:
            client.delete(self.bell(queue))
        purged: int = super()._purge(queue)
        return purged

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super()._delete(queue, *args, **kwargs)
        with self.conn_or_acquire(kwargs.get("client")) as client:
            client.delete(self.bell(queue))

    def close(self) -> None:
        """Send what is noted, put back what was taken and not handed out, and disconnect."""
        if not self.closed:
            try:
                self._close_wire()
            except self.connection_errors:
                # The server is gone: what is not acknowledged comes back after its visibility timeout.
                logger.warning("could not send the last acknowledgements: their messages will be delivered again")
        super().close()

    def _close_wire(self) -> None:
        if self._in_flight == "take":
            with suppress(Empty):
                self._brpop_read()
        self.flush_acknowledgements()
        while self._taken:
            _, raw = self._taken.popleft()
            self.qos.restore_by_tag(json.loads(raw)["properties"]["delivery_tag"], leftmost=False)


class Transport(stock.Transport):
    """`redis://` and `rediss://`."""

    Channel = Channel

    in_event_loop = False
    malformed = 0
    """Malformed messages that this connection has set aside."""

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Join a worker's event loop, whose every turn sends the acknowledgements that no take carries."""
        super().register_with_event_loop(connection, loop)
        self.in_event_loop = True
        loop.on_tick.add(self._on_tick)
        self._loop = loop

    def _on_tick(self) -> None:
        poller: Any = self.cycle
        for channel in list(poller._channels):
            channel.flush_acknowledgements_if_idle()

    def close_connection(self, connection: Any) -> None:
        """Leave the event loop, and close every channel."""
        if self.in_event_loop:
            self._loop.on_tick.discard(self._on_tick)
            self.in_event_loop = False
        super().close_connection(connection)


class SentinelChannel(Channel, stock.SentinelChannel):
    """A channel whose server is the primary that Redis Sentinel names."""


class SentinelTransport(Transport, stock.SentinelTransport):
    """`sentinel://`."""

    Channel = SentinelChannel
