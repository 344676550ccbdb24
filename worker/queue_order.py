"""The order in which this process reads its queues, as kombu asks for it: what the latest decision of placement says.

kombu makes an object of `ResidentFirst` for each channel, and a new one after each reconnect; all of them obey the one
`Order` of the process. A queue that is left out is not read. Queues that are no checkpoint's are always read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class Order:
    """Queues by name.

    Attributes:
        managed: those that placement decides about.
        warm: those of them that are read, because their checkpoints are resident: taken from in turn.
        cold: those that are read although a message may have to wait for a load.
    """

    managed: frozenset[str] = frozenset()
    warm: tuple[str, ...] = ()
    cold: tuple[str, ...] = ()

    def lets_in(self, queue: str) -> bool:
        """Whether the queue is read now."""
        return queue not in self.managed or queue in self.warm or queue in self.cold


class Current:
    """The order that holds in this process; by default everything is read."""

    def __init__(self) -> None:
        """Read everything."""
        self.order = Order()
        self.cold_room: Callable[[Collection[str]], int] = lambda _: sys.maxsize
        """How many more messages of these cold queues may be in hand, so that threads are left for the warm."""


current = Current()
"""Of this process: kombu's objects are made without arguments, so there is no other way to them."""


class ResidentFirst:
    """A `queue_order_strategy` of kombu's Redis transport."""

    def __init__(self) -> None:
        """Start with no queue."""
        self._queues: list[str] = []
        self._taken_at: dict[str, int] = {}
        self._ticks = count(1)

    def update(self, queues: Sequence[str]) -> None:
        """These are consumed from now."""
        self._queues = list(queues)
        self._taken_at = {queue: at for queue, at in self._taken_at.items() if queue in self._queues}

    def consume(self, most: int) -> list[str]:
        """The queues to read next, in order; of those that are warm, the one that waited longest for its turn first."""
        order = current.order
        place = {queue: at for at, queue in enumerate(order.warm)}
        warm = [queue for queue in self._queues if queue in place or queue not in order.managed]
        warm.sort(key=lambda queue: (self._taken_at.get(queue, 0), place.get(queue, len(place))))
        cold = [queue for queue in order.cold if queue in self._queues]
        if cold and current.cold_room(cold) < 1:
            cold = []
        return [*warm, *cold][:most]

    def rotate(self, last: str) -> str:
        """A message came from this queue."""
        self._taken_at[last] = next(self._ticks)
        return last

    def at_most(self, queues: Sequence[str]) -> int:
        """How many messages may be taken from these at once."""
        cold = [queue for queue in current.order.cold if queue in queues]
        return max(1, current.cold_room(cold)) if cold else sys.maxsize
