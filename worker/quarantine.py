"""Quarantine: a message that was delivered before runs among few others of its kind, and in the end alone.

What may run beside it is decided in `worker.suspects`. Here a worker's consumer is held to that: what arrives meanwhile
and may not go beside the suspects at work goes back to the queue untouched, for others. Whether a suspect may be begun
at all is `worker.redelivery`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

from celery.worker import state

from producer.transport_records import QoS
from worker.in_hand import copied
from worker.suspects import company, is_suspect, returns_of, verdict

logger = logging.getLogger(__name__)

APART_S: Final = 60.0
"""Seconds for which a suspect is kept from others: what kills does so sooner, and what takes longer shares its worker.
But for one that runs alone, for as long as it takes: what joined it could convict it."""

PATIENCE_S: Final = 60.0
"""Seconds that a suspect waits here for its neighbours to finish. Then it goes behind the queue: another worker may
have less to do."""

LOOK_S: Final = 0.01


class Timer(Protocol):
    """What calls back later in the thread that takes messages."""

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Any:
        """Call once."""


class Examine(Protocol):
    """What decides in a thread of the pool what becomes of a suspect, and begins it."""

    def __call__(self, request: Any, at_most: int, done: Callable[[], None]) -> None:
        """Begin it if workers have begun it fewer than `at_most` times; call `done` in any case."""


@dataclass(eq=False)
class _Suspect:
    """A suspect at work: among how many it may be, since when it is, and whether its examination is over."""

    request: Any
    among: int
    since: float
    examined: bool = False

    def is_over(self) -> None:
        self.examined = True


@dataclass(eq=False)
class Quarantine:
    """Stands between a worker's consumer and its pool. Everything happens in the thread that takes messages.

    Attributes:
        start: begins a message as Celery would.
        examine: see `Examine`.
        timer: calls back in the thread that takes messages.
        most: how often a message may be begun.
        width: messages that this worker works on at once.
    """

    start: Callable[[Any], None]
    examine: Examine
    timer: Timer
    most: int
    width: int
    _at_work: list[_Suspect] = field(default_factory=list)
    _closed: bool = False
    _cautious: int = 0
    _waiting: Any = None
    _waiting_since: float = 0.0
    _returning: list[Any] = field(default_factory=list)

    def process(self, request: Any) -> None:
        """Take a message that has arrived."""
        suspect = is_suspect(request.delivery_info, request.request_dict)
        if not suspect and not self._at_work:
            self._cautious = 0
            self._start(request)
            return
        if not isinstance(request.message.channel.qos, QoS):
            self._examine_among_others(request)  # the stock transport gives nothing back without disorder
            return
        among = company(returns_of(request), self.most, self.width) if suspect else None
        beside = [one.among for one in self._apart()]
        decided = verdict(
            among=among,
            beside=beside,
            neighbours=self._neighbours(request),
            closed=self._closed,
            waiting=self._waiting is not None,
        )
        if decided == "start":
            self._cautious = 0
            self._start(request)
        elif decided == "join":
            self._begin(request)
        elif decided == "wait":
            self._waiting, self._waiting_since = request, monotonic()
            self.timer.call_after(LOOK_S, self._look)
        else:
            # The first that could not join although there was room has the next turn; who comes behind it, has not.
            self._closed = self._closed or (bool(beside) and not self._returning and len(beside) < min(beside))
            self._give_back(request)

    def room(self, room: int) -> int:
        """How many messages may be taken, of those that there is room for.

        As many as may join the suspects at work; none while one waits. After some, as many as they were among: the
        next may be suspects too.
        """
        if self._waiting is not None:
            return 0
        if self._at_work and (apart := self._apart()):
            return 0 if self._closed else min(room, min(one.among for one in apart) - len(apart))
        return min(room, self._cautious) if self._cautious else room

    @property
    def takes_nothing(self) -> bool:
        """Whether suspects have the worker for themselves just now, or one waits for that. For any thread."""
        return self._waiting is not None or any(map(_is_apart, tuple(self._at_work)))

    def reconnected(self) -> None:
        """The consumer has a new connection: what waited here has gone back to the queue with the old one."""
        self._waiting = None

    def _apart(self) -> list[_Suspect]:
        """The suspects that have the worker for themselves just now."""
        self._at_work = [one for one in self._at_work if _is_at_work(one)]
        apart = [one for one in self._at_work if _is_apart(one)]
        self._closed = self._closed and bool(apart)
        return apart

    def _start(self, request: Any) -> None:
        """Begin a message. One that cannot be begun takes no room any more; its message is the wire's matter."""
        try:
            self.start(request)
        except BaseException:
            state.task_ready(request)
            raise

    def _begin(self, request: Any) -> None:
        among = company(returns_of(request), self.most, self.width)
        suspect = _Suspect(request, among, monotonic())
        self._at_work.append(suspect)
        self._cautious = among
        # What was begun too often for company comes back once more, to run alone: only that convicts.
        self.examine(request, self.most if among == 1 else self.most - 1, suspect.is_over)

    def _examine_among_others(self, request: Any) -> None:
        if is_suspect(request.delivery_info, request.request_dict):
            self.examine(request, self.most, lambda: None)
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
        """How many messages are at work here, without this one and the suspects that are apart."""
        counted = {id(one.request) for one in self._apart()} | {id(request)}
        return sum(id(one) not in counted for one in copied(state.reserved_requests))

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


def _is_at_work(suspect: _Suspect) -> bool:
    request = suspect.request
    return not suspect.examined or request in state.reserved_requests or request in state.active_requests


def _is_apart(suspect: _Suspect) -> bool:
    return _is_at_work(suspect) and (suspect.among == 1 or monotonic() - suspect.since < APART_S)
