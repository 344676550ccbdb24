"""Unacknowledged messages: acknowledging them together, and putting back what nobody will acknowledge.

Records are kombu's own: a hash of messages by delivery tag, and an index of the tags by the time they were taken. A
take makes them; this removes them, whatever happens to the consumer, its connection or its process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from kombu.log import get_logger
from kombu.transport import redis as stock
from kombu.transport import virtual
from kombu.utils.json import dumps, loads

from producer.transport_message import OVERDUE, RETURNED, Taken
from producer.transport_scripts import ORPHAN, RENEW, RESTORE, SET_ASIDE

if TYPE_CHECKING:
    from producer.transport_channel import Channel

logger = get_logger(__name__)

TAKE_AT_MOST: Final = 64
"""Messages in one take, whatever the room: what follows waits no longer than these take to hand out."""

SWEEP_AT_LEAST_EVERY_S: Final = 10.0
"""Seconds between looks for overdue records when none is expected: a stock worker records by its own clock."""

SWEEP_AT_MOST: Final = 1000
"""Messages put back in one sweep; what is left waits for the next, and the loop does its other work."""

_TOGETHER: Final = 32  # messages in memory at once while they are put back

Tag = str | bytes
Mark = Callable[[dict[str, Any]], dict[str, Any]]


class Records:
    """The records of one channel's messages, and the acknowledgements on their way to the server."""

    def __init__(self, channel: Channel) -> None:
        """See the class."""
        self._channel = channel
        self._noted: deque[Tag] = deque()
        self._carried: list[Tag] = []
        self._next_sweep = 0.0  # monotonic() from which on a record may be overdue

    # --- acknowledging ---

    @property
    def noted(self) -> bool:
        """Whether an acknowledgement waits to be sent."""
        return bool(self._noted)

    def acknowledge(self, tag: Tag) -> None:
        """Note an acknowledgement, for the next take or turn of the loop; where there is no loop, send it now."""
        self._noted.append(tag)
        if not self._channel.has_turns:
            self.flush()

    def flush(self) -> None:
        """Send every noted acknowledgement now. One that could not be sent stays noted.

        Raises:
            redis.exceptions.RedisError: as the server or the connection has it.
        """
        tags = self._drain()
        if not tags:
            return
        channel = self._channel
        try:
            with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                pipe.zrem(channel.unacked_index_key, *tags)
                pipe.hdel(channel.unacked_key, *tags)
                pipe.execute()
        except BaseException:
            self._noted.extendleft(tags)
            raise

    def carry(self) -> list[Tag]:
        """Hand what is noted to a take. `arrived` or `lost` must follow."""
        self._carried = self._drain()
        return self._carried

    def arrived(self) -> None:
        """The take has acknowledged what it carried."""
        self._carried = []

    def lost(self) -> None:
        """Nobody knows whether the take has; acknowledging twice does no harm."""
        self._noted.extendleft(self._carried)
        self._carried = []

    def _drain(self) -> list[Tag]:
        tags = []
        while self._noted:
            tags.append(self._noted.popleft())
        return tags

    # --- keeping ---

    def renew(self, tags: Sequence[Tag]) -> None:
        """Let records that are still there count from now: whoever has their messages is alive.

        Raises:
            redis.exceptions.RedisError: as the server or the connection has it.
        """
        if tags:
            with self._channel.conn_or_acquire() as client:
                client.eval(RENEW, 1, *self._channel.prefixed([self._channel.unacked_index_key]), *tags)

    # --- putting back ---

    def sweep(self, at_most: int | None) -> None:
        """Put overdue messages back. Asks the server only when the oldest record can have become overdue."""
        if monotonic() < self._next_sweep:
            return
        channel = self._channel
        with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
            pipe.zrange(channel.unacked_index_key, 0, 0, withscores=True)
            pipe.time()
            oldest, (seconds, micros) = pipe.execute()
        now = seconds + micros / 1_000_000  # of the server, by whose clock every take records
        overdue_since = now - channel.visibility_timeout
        due_in = oldest[0][1] - overdue_since if oldest else channel.visibility_timeout
        if due_in > 0:
            # A message that is taken later is due later, so nothing is missed until then.
            self._next_sweep = monotonic() + min(due_in, SWEEP_AT_LEAST_EVERY_S)
            return
        with channel.conn_or_acquire() as client:
            tags = client.zrange(
                channel.unacked_index_key, "-inf", overdue_since, byscore=True, offset=0, num=at_most or SWEEP_AT_MOST
            )
        errors = self._restore(tags[::-1], "RPUSH", overdue_since, mark=_overdue)
        if errors:
            logger.error("%d overdue message(s) could not be put back on their queues: %s", len(errors), errors[0])

    def put_back(self, tags: Iterable[Tag], *, last: bool = False) -> None:
        """Put messages back on their queues as they came; the first of the tags is the first to be taken again.

        Args:
            tags: of the messages. One that has no record any more is acknowledged, or put back by somebody else.
            last: put them behind all that wait, instead of before.

        Raises:
            redis.exceptions.RedisError: as the server or the connection has it.
        """
        ordered = list(tags)
        for error in self._restore(ordered if last else ordered[::-1], "LPUSH" if last else "RPUSH"):
            raise error

    def requeue(self, tag: Tag, *, last: bool) -> None:
        """Put a message back that a consumer had and wants delivered again, marked so.

        Raises:
            redis.exceptions.RedisError: as the server or the connection has it.
        """
        for error in self._restore([tag], "LPUSH" if last else "RPUSH", mark=_returned):
            raise error

    def overdue(self, tag: Tag) -> None:
        """Put a message back before all that wait, as if its time had been over once more.

        Raises:
            redis.exceptions.RedisError: as the server or the connection has it.
        """
        for error in self._restore([tag], "RPUSH", mark=_overdue):
            raise error

    def set_aside(self, tag: Tag, text: bytes, why: str) -> None:
        """Move a recorded message that cannot be read to the list of malformed ones."""
        with self._channel.conn_or_acquire() as client:
            self._set_aside(client, tag, text, why)

    def _restore(
        self, tags: Sequence[Tag], end: str, made_until: float | None = None, *, mark: Mark | None = None
    ) -> list[Exception]:
        """Put messages back, in pipelines; the errors of those that could not be.

        Args:
            tags: of the messages.
            end: the command that puts one on its list.
            made_until: time after which a record must not have been made.
            mark: what to say in them, if somebody may have begun them: `_overdue`, or `_returned` by a worker that
                lives. The others were not begun, and come as they were.
        """
        errors: list[Exception] = []
        for first in range(0, len(tags), _TOGETHER):
            some = tags[first : first + _TOGETHER]
            with self._channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                for tag in some:
                    pipe.hget(self._channel.unacked_key, tag)
                for tag, record in zip(some, pipe.execute(), strict=True):
                    self._restore_one(pipe, tag, record, end, made_until, mark=mark)
                errors += [reply for reply in pipe.execute(raise_on_error=False) if isinstance(reply, Exception)]
        return errors

    def _restore_one(
        self, pipe: Any, tag: Tag, record: bytes | None, end: str, made_until: float | None, *, mark: Mark | None
    ) -> None:
        channel = self._channel
        if record is None:
            pipe.eval(ORPHAN, 2, *self._keys(), tag)
            return
        try:
            message, exchange, routing_key = loads(record)
            lists, bells = channel.homes(message, exchange, routing_key)
            text = dumps(mark(message) if mark else message)
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not keep the others from their queues
            self._set_aside(pipe, tag, record, f"the record cannot be read: {error}")
            return
        keys = [*self._keys(), *channel.prefixed(lists), *channel.prefixed(bells)]
        until = "" if made_until is None else made_until
        pipe.eval(RESTORE, len(keys), *keys, tag, text, end, *channel.bell_keeping, until)

    def _set_aside(self, client: Any, tag: Tag, text: bytes, why: str) -> None:
        client.eval(SET_ASIDE, 3, *self._keys(), *self._channel.prefixed([self._channel.malformed_key]), tag, text)
        self._channel.count_malformed(1, why)

    def _keys(self) -> list[str]:
        return self._channel.prefixed([self._channel.unacked_key, self._channel.unacked_index_key])


def _overdue(message: dict[str, Any]) -> dict[str, Any]:
    headers = _redelivered(message)["headers"]
    headers.pop(RETURNED, None)
    before = headers.get(OVERDUE)
    headers[OVERDUE] = 1 + (before if isinstance(before, int) and before > 0 else 0)
    return message


def _returned(message: dict[str, Any]) -> dict[str, Any]:
    _redelivered(message)["headers"][RETURNED] = True
    return message


def _redelivered(message: dict[str, Any]) -> dict[str, Any]:
    message.setdefault("headers", {})["redelivered"] = True
    message["properties"].setdefault("delivery_info", {})["redelivered"] = True
    return message


class QoS(stock.QoS):
    """kombu's account of a channel's unacknowledged messages; what it does in Redis is `Records`' work."""

    channel: Channel

    room: Callable[[], int] | None = None
    """How many messages the worker can start now, where it knows: a number beside `worker_disable_prefetch`."""

    at_work: Callable[[], Collection[str]] | None = None
    """Tags of messages that are being worked on and will be acknowledged although this channel has lost its server."""

    unhandled: Callable[[Taken, Channel, Exception], bool] | None = None
    """Takes over a message at which the consumer failed; whether it did, so that the message can be acknowledged."""

    def append(self, message: Any, delivery_tag: str) -> None:
        """Remember a message; one that came from a take is on record in Redis already."""
        if isinstance(message._raw, Taken):
            message._raw.held = True
            virtual.QoS.append(self, message, delivery_tag)
        else:
            super().append(message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message: with others, where there is a loop."""
        self.channel.records.acknowledge(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)

    def let_go(self, delivery_tag: str) -> None:
        """Give a message's place to another, and leave its record to the visibility timeout."""
        virtual.QoS.ack(self, delivery_tag)

    def takeable(self) -> int:
        """How many messages may be taken now: never more than the consumer has room for."""
        if not self.channel.has_turns:
            return 1  # drain_events delivers one message, as it always did
        by_prefetch = self.can_consume_max_estimate()
        limit = TAKE_AT_MOST if by_prefetch is None else min(TAKE_AT_MOST, by_prefetch)
        if self.room is not None:
            return max(0, min(limit, self.room()))
        # worker_disable_prefetch replaces can_consume on the instance, and that alone tells no number.
        return min(limit, 1) if "can_consume" in vars(self) else limit

    def restore_visible(self, start: int = 0, num: int | None = None, interval: int = 10) -> None:  # noqa: ARG002 - kombu's
        """Put overdue messages back: see `Records.sweep`, which knows better than an interval when to look."""
        self.channel.records.sweep(num)

    def restore_by_tag(self, tag: Tag, client: Any = None, leftmost: bool = False) -> None:  # noqa: ARG002 - kombu's
        """Put one unacknowledged message back on its queue."""
        self.channel.records.requeue(tag, last=leftmost)

    def restore_unacked(self, client: Any = None) -> None:  # noqa: ARG002 - kombu's
        """Put back every message of this channel, in their order, except those that are being worked on."""
        self._flush()
        kept = self.at_work() if self.at_work else ()
        self.channel.attempt(
            lambda: self.channel.records.put_back([tag for tag in self._delivered if tag not in kept]),
            "put back what was not acknowledged",
        )
        self._delivered.clear()
