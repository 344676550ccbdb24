"""Quarantine: a message that was delivered before runs alone, so that its death takes no neighbour along.

When a worker dies, all that it worked on comes back, and one of them may be what killed it. Each of these suspects runs
with nothing else at work in its process; what arrives meanwhile goes back to the queue untouched, for others. So a
killer is found by who dies with it, which is nobody. Whether a suspect may be begun at all is `worker.redelivery`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Literal, Protocol

from celery.worker import state

from producer.transport_message import RETURNED
from producer.transport_records import QoS

logger = logging.getLogger(__name__)

ALONE_S: Final = 60.0
"""Seconds for which a suspect has its worker for itself. What kills does so sooner; what takes longer shares."""

PATIENCE_S: Final = 60.0
"""Seconds that a suspect waits here for its neighbours to finish. Then it goes behind the queue: another worker may
have less to do."""

LOOK_S: Final = 0.01

Verdict = Literal["start", "alone", "wait", "back"]


def verdict(*, suspect: bool, neighbours: int, alone: bool, waiting: bool) -> Verdict:
    """What to do with a message that has arrived.

    Args:
        suspect: it was delivered before.
        neighbours: how many others this process works on.
        alone: a suspect runs alone just now.
        waiting: a suspect waits for that.

    Returns:
        `start` it; start it `alone`; let it `wait` for its neighbours to finish; or give it `back` to the queue. What
        runs is never joined by a suspect, and what runs alone by nothing.
    """
    if alone:
        return "back"
    if not suspect:
        return "start"
    if waiting:
        return "back"
    return "alone" if neighbours == 0 else "wait"


class Timer(Protocol):
    """What calls back later in the thread that takes messages."""

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Any:
        """Call once."""


@dataclass(eq=False)
class Quarantine:
    """Stands between a worker's consumer and its pool. Everything happens in the thread that takes messages.

    Attributes:
        start: begins a message as Celery would.
        examine: decides in a thread of the pool what becomes of a suspect, and begins it.
        timer: calls back in the thread that takes messages.
    """

    start: Callable[[Any], None]
    examine: Callable[[Any, Callable[[], None]], None]
    timer: Timer
    _alone: Any = None
    _since: float = 0.0
    _examined: bool = True
    _waiting: Any = None
    _waiting_since: float = 0.0
    _cautious: bool = False
    _returning: list[Any] = field(default_factory=list)

    def process(self, request: Any) -> None:
        """Take a message that has arrived."""
        suspect = is_suspect(request)
        if not suspect and self._alone is None:
            self._cautious = False
            self._start(request)
            return
        if not isinstance(request.message.channel.qos, QoS):
            self._examine_among_others(request)  # the stock transport gives nothing back without disorder
            return
        alone, waiting = self.alone, self._waiting is not None
        decided = verdict(suspect=suspect, neighbours=self._neighbours(request), alone=alone, waiting=waiting)
        if decided == "start":
            self._start(request)
        elif decided == "alone":
            self._begin(request)
        elif decided == "wait":
            self._waiting, self._waiting_since = request, monotonic()
            self.timer.call_after(LOOK_S, self._look)
        else:
            self._give_back(request)

    def room(self, room: int) -> int:
        """How many messages may be taken, of those that there is room for.

        None while a suspect runs alone or waits for it; and one at a time after one, for the next may be another.
        """
        if self._waiting is not None or self.alone:
            return 0
        return min(room, 1) if self._cautious else room

    @property
    def alone(self) -> bool:
        """Whether a suspect has the worker for itself just now."""
        if self._alone is None:
            return False
        if self._examined and not is_at_work(self._alone):
            self._alone = None
            return False
        return monotonic() - self._since < ALONE_S

    def reconnected(self) -> None:
        """The consumer has a new connection: what waited here has gone back to the queue with the old one."""
        self._waiting = None

    def _start(self, request: Any) -> None:
        """Begin a message. One that cannot be begun takes no room any more; its message is the wire's matter."""
        try:
            self.start(request)
        except BaseException:
            state.task_ready(request)
            raise

    def _begin(self, request: Any) -> None:
        self._alone, self._since, self._examined = request, monotonic(), False
        self._cautious = True
        self.examine(request, self._after_examination)

    def _after_examination(self) -> None:
        self._examined = True

    def _examine_among_others(self, request: Any) -> None:
        if is_suspect(request):
            self.examine(request, lambda: None)
        else:
            self._start(request)

    def _look(self) -> None:
        """See whether the suspect that waits can begin."""
        request = self._waiting
        if request is None:
            return
        if request not in state.reserved_requests:
            self._waiting = None  # the connection was lost
        elif self._neighbours(request) == 0:
            self._waiting = None
            self._begin(request)
        elif monotonic() - self._waiting_since > PATIENCE_S:
            self._waiting = None
            self._put_back([request], last=True)
        else:
            self.timer.call_after(LOOK_S, self._look)

    def _neighbours(self, request: Any) -> int:
        return len(state.reserved_requests) - (request in state.reserved_requests)

    def _give_back(self, request: Any) -> None:
        """Give back with others that came by the same take, so that they keep their order."""
        state.task_ready(request)
        if not self._returning:
            self.timer.call_after(0.0, self._return)
        self._returning.append(request)

    def _return(self) -> None:
        returning, self._returning = self._returning, []
        self._put_back(returning, last=False)

    def _put_back(self, requests: list[Any], *, last: bool) -> None:
        for channel in {request.message.channel for request in requests}:
            tags = [one.message.delivery_tag for one in requests if one.message.channel is channel]
            for request in requests:
                state.task_ready(request)
            channel.records.put_back(tags, last=last)
            for tag in tags:
                channel.qos.let_go(tag)


def is_suspect(request: Any) -> bool:
    """Whether a message was delivered before to a worker that neither answered it nor gave it back."""
    return bool(request.delivery_info.get("redelivered")) and not request.request_dict.get(RETURNED)


def is_at_work(request: Any) -> bool:
    """Whether this process works on a message."""
    return request in state.reserved_requests or request in state.active_requests
