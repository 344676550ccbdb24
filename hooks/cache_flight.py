"""Equal requests at once in one process: one of them finds the answer, the others wait for it.

Whoever computes it never waits for anybody in the meantime, and neither does a call made inside its own, so that no two
can wait for each other. What an answer is, and where it is looked for, is not known here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Flight:
    """The search for one answer: `text` is it once `done` is set, None where there came none."""

    name: str
    call_id: str | None
    began: float
    done: threading.Event = field(default_factory=threading.Event)
    text: bytes | None = None


@dataclass(frozen=True, slots=True)
class Seat:
    """What a request that joins is to do.

    Attributes:
        flight: the flight to wait for, or the caller's own if it `leads`; None: search alone.
        leads: whether the caller finds the answer for the others, and ends the flight whatever happens.
    """

    flight: Flight | None
    leads: bool = False


ALONE = Seat(None)


class Flights:
    """The flights of a process, by the name of what is searched. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with none."""
        self._clock = clock
        self._lock = threading.Lock()
        self._flights: dict[str, Flight] = {}
        self._leading: Counter[str] = Counter()

    def has(self, name: str) -> bool:
        """Whether somebody here searches for `name` just now."""
        return name in self._flights

    def join(self, name: str, call_id: str | None, lifetime: float, *, may_wait: bool) -> Seat:
        """Take part in the search for `name`.

        Args:
            name: of what is searched.
            call_id: the outermost call that this request belongs to; None belongs to none that could be known.
            lifetime: seconds after which a flight counts as lost.
            may_wait: whether the caller can wait for another.
        """
        with self._lock:
            flight = self._flights.get(name)
            if flight is None or self._is_lost(flight, lifetime):
                return Seat(self._begin(name, call_id), leads=True)
            if flight.done.is_set():
                return Seat(flight)
            # Who is waited for must not wait: else two calls could each lead what the other waits for.
            if not may_wait or call_id is None or self._leading[call_id]:
                return ALONE
            return Seat(flight)

    def claim(self, name: str, call_id: str | None, lifetime: float) -> Flight:
        """Lead the search for `name` because nobody else in the fleet does; the arguments are those of `join`.

        Where somebody here is about to search for it, too, that is a flight that nobody joins: its call counts as one
        that is waited for all the same.
        """
        with self._lock:
            flight = self._flights.get(name)
            if flight is None or flight.done.is_set() or self._is_lost(flight, lifetime):
                return self._begin(name, call_id)
            self._count(call_id)
            return Flight(name, call_id, self._clock())

    def leads(self, call_id: str | None) -> bool:
        """Whether this call leads a flight, and so must not wait for anything; so it is where that cannot be known."""
        with self._lock:
            return call_id is None or self._leading[call_id] > 0

    def leads_more_than(self, flight: Flight) -> bool:
        """Whether the call behind this flight leads another one too, and so must not wait for anything."""
        with self._lock:
            return flight.call_id is None or self._leading[flight.call_id] > 1

    def land(self, flight: Flight, text: bytes | None) -> None:
        """Give the waiting their answer, or None: they search for themselves. With an answer, joiners get it too
        until the flight is over."""
        with self._lock:
            if flight.done.is_set():
                return
            flight.text = text
            flight.done.set()
            if flight.call_id is not None:
                self._leading[flight.call_id] -= 1
                if not self._leading[flight.call_id]:
                    del self._leading[flight.call_id]
        if text is None:
            self.end(flight)

    def end(self, flight: Flight) -> None:
        """Forget it: the next that searches begins anew."""
        with self._lock:
            if self._flights.get(flight.name) is flight:
                del self._flights[flight.name]

    def _begin(self, name: str, call_id: str | None) -> Flight:
        self._count(call_id)
        self._flights[name] = flight = Flight(name, call_id, self._clock())
        return flight

    def _count(self, call_id: str | None) -> None:
        if call_id is not None:
            self._leading[call_id] += 1

    def _is_lost(self, flight: Flight, lifetime: float) -> bool:
        return not flight.done.is_set() and self._clock() - flight.began > lifetime


FLIGHTS = Flights()
"""The flights of this process, whichever hook found them: two hooks on one call must know of each other."""
