"""How many messages may wait for a checkpoint: a full queue refuses a backend's message at once.

A publish tells how long the list has become, so the limit costs no round trip of its own: a message that proves to be
one too many is withdrawn, and while the queue is known to be full, a look at it comes before the next. Only backends
ask. What a worker publishes (retries, links, what it hands over) is never refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from producer.checkpoints import QUEUE_PREFIX
from producer.errors import QueueFull

if TYPE_CHECKING:
    from producer.transport_channel import Channel

FRESH_S: Final = 0.1
"""Seconds for which a look at a queue counts while many messages are published together: what others publish in the
meantime is what the queue can grow beyond its limit."""

RETRY_AFTER_S: Final = 1.0
"""The hint of a `QueueFull`: a worker takes that many messages off a queue in a second that an answer is likely."""

_OF_A_CHECKPOINT: Final = f"{QUEUE_PREFIX}."


@dataclass(slots=True)
class _Seen:
    waiting: int
    at: float
    """On the monotonic clock."""


class QueueLimit:
    """What one channel knows of its queues' lengths, and whom it refuses."""

    def __init__(self, channel: Channel) -> None:
        """See the class."""
        self._channel = channel
        self._seen: dict[str, _Seen] = {}

    def concerns(self, queue: str) -> bool:
        """Whether a queue has a limit: those of checkpoints have, where the connection's options set one."""
        return self._channel.max_queue > 0 and queue.startswith(_OF_A_CHECKPOINT)

    def admit(self, queue: str) -> None:
        """Let one message pass before it is sent. Looks only at a queue that was full when last seen.

        Raises:
            QueueFull: it is still full.
        """
        seen = self._seen.get(queue)
        if seen is not None and seen.waiting >= self._channel.max_queue:
            self._refuse_if_full(queue, self._look(queue))

    def admit_in_batch(self, queue: str) -> None:
        """Let one message of many pass, whose publishing tells nothing: looks now and then, and counts in between.

        Raises:
            QueueFull: it is full.
        """
        seen = self._seen.get(queue)
        if seen is None or monotonic() - seen.at > FRESH_S:
            self._look(queue)
            seen = self._seen[queue]
        self._refuse_if_full(queue, seen.waiting)
        seen.waiting += 1

    def published(self, queue: str, waiting: int, key: str, text: str) -> None:
        """Learn from a publish how many wait now, and withdraw the message if it is one too many.

        Raises:
            QueueFull: it was, and it was withdrawn. One that a worker has taken meanwhile stays published.
        """
        if waiting <= self._channel.max_queue:
            self._note(queue, waiting)
            return
        with self._channel.conn_or_acquire() as client:
            withdrawn = client.lrem(*self._channel.prefixed([key]), 1, text)
        self._note(queue, waiting - 1)
        if withdrawn:
            raise self._full(queue, waiting - 1)

    def _look(self, queue: str) -> int:
        waiting = self._channel._size(queue)
        self._note(queue, waiting)
        return waiting

    def _note(self, queue: str, waiting: int) -> None:
        self._seen[queue] = _Seen(waiting, monotonic())

    def _refuse_if_full(self, queue: str, waiting: int) -> None:
        if waiting >= self._channel.max_queue:
            raise self._full(queue, waiting)

    def _full(self, queue: str, waiting: int) -> QueueFull:
        checkpoint, limit = queue.removeprefix(_OF_A_CHECKPOINT), self._channel.max_queue
        return QueueFull(
            f"{waiting} messages wait for the checkpoint {checkpoint!r}, and LAYA_MAX_QUEUE allows {limit}",
            {"checkpoint": checkpoint, "waiting": waiting, "limit": limit, "retry_after": RETRY_AFTER_S},
        )


def lengths(replies: list[Any]) -> int:
    """The messages on several lists; a list that could not be counted has none."""
    return sum(reply for reply in replies if isinstance(reply, int))
