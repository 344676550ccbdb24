"""A fleet in simulated time: workers with checkpoints that take time to load and to answer, for trying out placement.

Discrete events, nothing else: messages arrive, workers answer them one at a time, load, die and are replaced. What a
worker does next is its policy's, in `benchmarks.fleet_policies`.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from random import Random
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens. Times in seconds.

    Attributes:
        workers, checkpoints, capacity: how many; checkpoints that a worker holds at once.
        seconds: how long messages arrive.
        busy: share of the fleet's time that answering takes, loads apart.
        answer_s, load_s: what an answer and a load take.
        zipf: exponent of the checkpoints' popularity.
        shift_at: when all popularities are dealt anew; 0 for never.
        life_s: mean life of a worker.
        replaced_s: from a death to the new worker.
        visibility_s: until the message of a dead worker is back in its queue.
    """

    workers: int = 1000
    checkpoints: int = 50
    capacity: int = 2
    seconds: float = 240.0
    busy: float = 0.5
    answer_s: float = 0.2
    load_s: float = 3.0
    zipf: float = 1.1
    shift_at: float = 120.0
    life_s: float = 1200.0
    replaced_s: float = 15.0
    visibility_s: float = 30.0

    @property
    def names(self) -> tuple[str, ...]:
        """The checkpoints."""
        return tuple(f"checkpoint-{number:02}" for number in range(self.checkpoints))

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.busy * self.workers / self.answer_s

    def popularity(self) -> list[float]:
        """Share of each checkpoint, in order; they sum to 1."""
        weights = [1 / rank**self.zipf for rank in range(1, self.checkpoints + 1)]
        return [weight / sum(weights) for weight in weights]


@dataclass(slots=True, eq=False)
class Worker:
    """One worker; `held` and `loading` are checkpoint to since when, the least recently used first."""

    id: int
    place: int
    alive: bool = True
    held: dict[str, float] = field(default_factory=dict)
    loading: dict[str, float] = field(default_factory=dict)
    busy: str | None = None
    idle_since: float = 0.0
    claims: set[str] = field(default_factory=set)
    warm: tuple[str, ...] = ()
    cold: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    beat: int = 0
    turns: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """What came of it.

    Attributes:
        waits, at: seconds that each answered message waited, and when it arrived.
        waiting: ages of those that wait at the end.
        loads, evictions: how many.
        load_times: when each load began.
        dwells: seconds that each evicted checkpoint had been resident.
        deaths: of workers.
    """

    waits: array[float] = field(default_factory=lambda: array("d"))
    at: array[float] = field(default_factory=lambda: array("d"))
    waiting: list[float] = field(default_factory=list)
    loads: int = 0
    evictions: int = 0
    load_times: list[float] = field(default_factory=list)
    dwells: list[float] = field(default_factory=list)
    deaths: int = 0

    def share(self, share: float, after: float = 0.0) -> float:
        """The wait that a share of the messages which arrived after `after` kept below; unanswered ones counted."""
        waits = sorted([wait for wait, at in zip(self.waits, self.at, strict=True) if at >= after] + self.waiting)
        return waits[min(len(waits) - 1, int(share * len(waits)))]

    @property
    def longest(self) -> float:
        """The longest wait of all, answered or not."""
        return max(max(self.waits, default=0.0), max(self.waiting, default=0.0))


class World:
    """Messages, workers and a clock; a subclass is a policy."""

    def __init__(self, plan: Plan, seed: int) -> None:
        """Make the fleet; its workers are all born at the start, with nothing in memory."""
        self.plan, self.now, self.outcome = plan, 0.0, Outcome()
        self.queues: dict[str, deque[float]] = {name: deque() for name in plan.names}
        self.workers: list[Worker] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._ids = count()
        self._order = count()
        self._arrivals, self._deaths, self.random = (Random(f"{seed} {what}") for what in ("arrive", "die", "else"))
        self._shares = list(accumulate(plan.popularity()))
        self._names = list(plan.names)
        for place in range(plan.workers):
            self._birth(place)
        self._next_arrival()
        if plan.shift_at:
            self.after(plan.shift_at, self._shift)

    def run(self) -> Outcome:
        """Let everything happen until no more messages arrive."""
        events = self._events
        while events and events[0][0] <= self.plan.seconds:
            self.now, _, action, arguments = heapq.heappop(events)
            action(*arguments)
        self.now = self.plan.seconds
        self.outcome.waiting = [self.now - at for at in self.unanswered()]
        return self.outcome

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        """Have something happen."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), action, arguments))

    # --- what a policy says ---

    def unanswered(self) -> list[float]:
        """When each message arrived that nobody has begun to answer."""
        return [at for queue in self.queues.values() for at in queue]

    def born(self, worker: Worker) -> None:
        """A worker begins."""

    def arrived(self, name: str) -> None:
        """A message has come into a queue."""

    def free(self, worker: Worker) -> None:
        """A worker has answered a message, or loaded."""

    def gone(self, worker: Worker) -> None:
        """A worker has died, unnoticed."""

    # --- what a policy does ---

    def take(self, worker: Worker, name: str) -> None:
        """Answer the oldest message of a queue."""
        at = self.queues[name].popleft()
        self.outcome.waits.append(self.now - at)
        self.outcome.at.append(at)
        worker.busy = name
        worker.held[name] = worker.held.pop(name)
        self.after(self.plan.answer_s, self._answered, worker)

    def load(self, worker: Worker, name: str, evict: Iterable[str] = ()) -> None:
        """Begin to load, after the eviction of what has to go: first those named, then the least recently used."""
        while len(worker.held) + len(worker.loading) >= self.plan.capacity:
            victim = next(one for one in (*evict, *worker.held) if one in worker.held)
            self.drop(worker, victim)
        worker.loading[name] = self.now
        self.outcome.loads += 1
        self.outcome.load_times.append(self.now)
        self.after(self.plan.load_s, self._loaded, worker, name)

    def drop(self, worker: Worker, name: str) -> None:
        """Evict."""
        self.outcome.evictions += 1
        self.outcome.dwells.append(self.now - worker.held.pop(name))

    # --- what happens ---

    def _next_arrival(self) -> None:
        self.after(self._arrivals.expovariate(self.plan.rate), self._arrive)

    def _arrive(self) -> None:
        name = self._names[min(bisect(self._shares, self._arrivals.random()), len(self._names) - 1)]
        self.queues[name].append(self.now)
        self.arrived(name)
        self._next_arrival()

    def _shift(self) -> None:
        self._arrivals.shuffle(self._names)

    def _answered(self, worker: Worker) -> None:
        if worker.alive:
            worker.busy = None
            self.free(worker)

    def _loaded(self, worker: Worker, name: str) -> None:
        if worker.alive:
            del worker.loading[name]
            worker.held[name] = self.now
            self.free(worker)

    def _birth(self, place: int) -> None:
        worker = Worker(next(self._ids), place, idle_since=self.now)
        if place == len(self.workers):
            self.workers.append(worker)
        else:
            self.workers[place] = worker
        self.after(self._deaths.expovariate(1 / self.plan.life_s), self._death, worker)
        self.born(worker)

    def _death(self, worker: Worker) -> None:
        worker.alive = False
        self.outcome.deaths += 1
        if worker.busy is not None:
            self.after(self.plan.visibility_s, self._back, worker.busy)
        self.gone(worker)
        self.after(self.plan.replaced_s, self._birth, worker.place)

    def _back(self, name: str) -> None:
        self.queues[name].append(self.now)
        self.arrived(name)


def windows(outcome: Outcome, plan: Plan, width: float) -> Sequence[tuple[float, float]]:
    """The wait that 99 % of the messages of each stretch of time kept below, by its middle; unanswered ones too."""
    sorted_in: list[list[float]] = [[] for _ in range(int(plan.seconds / width))]
    waits = [*zip(outcome.at, outcome.waits, strict=True), *((plan.seconds - age, age) for age in outcome.waiting)]
    for at, wait in waits:
        sorted_in[min(int(at / width), len(sorted_in) - 1)].append(wait)
    return [
        ((number + 0.5) * width, sorted(found)[int(0.99 * len(found))])
        for number, found in enumerate(sorted_in)
        if found
    ]
