"""The conversation on a consumer's polled connection: take messages, wait on the doorbells, look at the lists.

One command is under way at a time. A take follows whenever it can bring something; when it has emptied the queues the
consumer waits for a ring, and when nobody has rung for a second it looks whether somebody (a stock producer) has put
a message there without ringing. No more than that is asked of the server by a worker at rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal

from kombu.log import get_logger
from redis.exceptions import NoScriptError, RedisError, ResponseError

from producer.transport_message import MalformedMessage, Taken
from producer.transport_scripts import TAKE, TAKE_SHA

if TYPE_CHECKING:
    from producer.transport_channel import Channel

logger = get_logger(__name__)

TAKE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of messages after which a take ends: one reply must not hold a batch of huge messages in memory."""

PAUSE_S: Final = 1.0
"""Seconds before the server is asked again after it refused a command."""

COMPLAIN_EVERY_S: Final = 60.0
"""Seconds before the same refusal is logged again."""

DEAF_S: Final = 5.0
"""Seconds without asking (the worker was busy) after which a ring may be gone, and only a take tells."""

Step = Literal["take", "wait", "look"]

_COMMANDS: Final[dict[Step | None, str]] = {"take": "EVALSHA", "wait": "BRPOP", "look": "EXISTS", None: "BRPOP"}


class Taker:
    """Takes messages for one channel, through the connection that kombu polls for it.

    Attributes:
        in_flight: what was asked and is not answered yet.
        queues: those of the last take.
        answered_at, taken_at: when the server answered last, and when it gave messages last, by `time.monotonic`.
    """

    def __init__(self, channel: Channel) -> None:
        """See the module."""
        self.in_flight: Step | None = None
        self._channel = channel
        self._next: Step = "take"
        self.queues: tuple[str, ...] = ()
        self.answered_at = 0.0
        self.taken_at: float | None = None
        self._taken: deque[tuple[str, bytes, bytes]] = deque()  # queue, tag and message, not with a consumer yet
        self._script_known = True
        self._paused_until = 0.0
        self._complaint = ("", 0.0)

    def start(self, timeout: float) -> None:
        """Send the next command, if there is one to be sent now.

        Args:
            timeout: seconds to wait for a ring.
        """
        self.hand_out()  # what a consumer that failed has left
        if monotonic() < self._paused_until:
            return
        channel = self._channel
        queues = tuple(channel._queue_cycle.consume(len(channel.active_queues)))
        if not queues:
            return
        step = self._step(queues)
        if step == "take":
            room = channel.qos.takeable()
            at_most = getattr(channel._queue_cycle, "at_most", None)  # an order that also knows how many
            if at_most is not None:
                room = min(room, at_most(queues))
            if room < 1:
                return
            self.queues = queues
            script = ["EVALSHA", TAKE_SHA] if self._script_known else ["EVAL", TAKE]
            command = [*script, *self._take(queues, room), *channel.records.carry()]
        elif step == "wait":
            command = ["BRPOP", *channel.prefixed(map(channel.bell, queues)), timeout]
        else:
            command = ["EXISTS", *channel.prefixed(channel.lists(queues))]
        self.in_flight = step
        channel.send(command)

    def read(self, **options: Any) -> None:
        """Read the reply to the command in flight, and hand out what a take brought.

        Raises:
            Empty: it brought nothing.
            redis.exceptions.RedisError, OSError: the connection is lost.
        """
        self._read_reply(**options)
        if not self._taken:
            raise Empty
        self.hand_out()

    def hand_out(self) -> None:
        """Give taken messages to their consumers; if one raises, the rest is handed out at the next turn."""
        channel = self._channel
        homeless = []
        for queue in dict.fromkeys(queue for queue, *_ in self._taken):
            channel._queue_cycle.rotate(queue)
        try:
            while self._taken:
                queue, tag, raw = self._taken.popleft()
                if queue in channel.connection._callbacks:
                    self._hand_over(queue, tag, raw)
                else:  # its consumer was cancelled while the take was under way
                    homeless.append(tag)
        finally:
            channel.records.put_back(homeless)

    def take_one(self, queue: str) -> tuple[bytes, bytes] | None:
        """Take one message of a queue now, beside the conversation: its tag and text, or None."""
        with self._channel.conn_or_acquire() as client:
            reply = client.eval(TAKE, *self._take([queue], 1))
        taken = self._told(reply, [queue])
        return taken[0][1:] if taken else None

    def lost(self) -> None:
        """The connection is gone: whatever was asked, nobody will answer."""
        self.in_flight = None
        self._next = "take"
        self._channel.records.lost()

    def settle(self) -> None:
        """End the conversation: put back what was taken, or is being taken, and has no consumer.

        Raises:
            redis.exceptions.RedisError, OSError: the server is gone; it comes back by its visibility timeout.
        """
        try:
            if self.in_flight == "take":
                with suppress(Empty):
                    self._read_reply()
        finally:
            taken = list(self._taken)
            self._taken.clear()
            self._channel.records.put_back(tag for _, tag, _ in taken)

    def _step(self, queues: tuple[str, ...]) -> Step:
        """What to ask now. A take as well where the last one tells nothing of these queues, or can do other work."""
        deaf = monotonic() - self.answered_at > DEAF_S
        others = set(queues) != set(self.queues)
        return "take" if deaf or others or self._channel.records.noted else self._next

    def _take(self, queues: Sequence[str], room: int) -> list[Any]:
        """The keys and arguments of a take, but for what it acknowledges."""
        channel = self._channel
        fixed = [channel.unacked_key, channel.unacked_index_key, channel.malformed_key]
        keys = channel.prefixed([*fixed, *channel.lists(queues), *map(channel.bell, queues)])
        return [len(keys), *keys, len(queues), room, TAKE_BYTES, *queues]

    def _read_reply(self, **options: Any) -> None:
        channel, client = self._channel, self._channel.client
        step, self.in_flight = self.in_flight, None
        try:
            reply = client.parse_response(client.connection, _COMMANDS[step], **options)
        except ResponseError as error:
            channel.records.lost()
            self._refused(error)
            raise Empty from None
        except (*channel.connection_errors, RedisError):
            client.connection.disconnect()
            raise
        finally:
            channel.answered()
        self.answered_at = monotonic()
        if step == "take":
            channel.records.arrived()
            self._script_known = True
            self._taken += self._told(reply, self.queues)
            if self._taken:
                self.taken_at = self.answered_at
            self._next = "wait" if reply[1] else "take"
        else:
            self._next = "take" if reply else "look" if step == "wait" else "wait"

    def _told(self, reply: list[Any], queues: Sequence[str]) -> list[tuple[str, bytes, bytes]]:
        """What a take brought: queue, tag and text of each message. Reports what was wrong."""
        malformed, _, refused, *taken = reply
        if malformed:
            self._channel.count_malformed(malformed, "they are not JSON, or have no delivery tag")
        if refused:
            self._complain("the broker refused a queue, and gave the messages of others: %s", refused.decode())
        places, tags, texts = taken[::3], taken[1::3], taken[2::3]
        return [(queues[place % len(queues)], tag, text) for place, tag, text in zip(places, tags, texts, strict=True)]

    def _hand_over(self, queue: str, tag: bytes, raw: bytes) -> None:
        channel = self._channel
        try:
            message = Taken.read(raw)
            channel.connection._deliver(message, queue)
        except MalformedMessage as error:
            channel.records.set_aside(tag, raw, str(error))
            return
        except ResponseError as error:
            if not channel.has_turns:
                raise
            # Not the message's fault: a key of the wrong type, a right that is missing.
            self._complain("a message stays on record, for the broker refused: %s", str(error))
            channel.qos.let_go(tag.decode())
            return
        except (OSError, RedisError, MemoryError):
            raise
        except Exception as error:
            if not channel.has_turns:
                raise
            # kombu would end the worker, or (after a KeyError) its connection, and the message would find the next.
            logger.exception("a message of the queue %r could not be handled", queue)
            self._unhandled(message, tag.decode(), raw, error)
            return
        if not message.held:  # a consumer that acknowledges nothing
            channel.records.acknowledge(tag)

    def _unhandled(self, message: Taken, tag: str, raw: bytes, error: Exception) -> None:
        """Acknowledge a message that somebody else has taken over; else it stays on record, to come again."""
        channel = self._channel
        qos = channel.qos
        try:
            taken_over = qos.unhandled is not None and qos.unhandled(message, channel, error)
        except ResponseError as refusal:
            self._complain("a message stays on record, for the broker refused: %s", str(refusal))
            taken_over = False
        except (OSError, RedisError, MemoryError):
            raise
        except Exception:
            logger.exception("a message of the queue could not be taken over either")
            channel.records.set_aside(tag, raw, "nothing here can handle it")
            taken_over = True
        if taken_over:
            qos.ack(tag)
        else:
            qos.let_go(tag)

    def _refused(self, error: ResponseError) -> None:
        """Decide what a refused command means: a script to send again, or a pause."""
        self._next = "take"
        if isinstance(error, NoScriptError):
            self._script_known = False
            return
        self._paused_until = monotonic() + PAUSE_S
        hint = " (it needs Redis 7 or Valkey)" if "ompiling script" in str(error) else ""
        self._complain("the broker refused a command, trying again every second: %s", f"{error}{hint}")

    def _complain(self, text: str, reason: str) -> None:
        """Log a refusal, once while it lasts and then once a minute."""
        last, when = self._complaint
        if reason != last or monotonic() - when > COMPLAIN_EVERY_S:
            self._complaint = (reason, monotonic())
            logger.error(text, reason)
