"""A fleet in simulated time: workers with checkpoints that take time to load and to answer, for trying out placement.

Discrete events, nothing else: messages arrive, workers answer them one at a time, load, die and are replaced. What a
worker does next is its policy's: `worker.placement`'s decision as real workers obey it, least recently used on one
shared queue, or a fixed assignment. All see the same messages and the same deaths.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from random import Random
from typing import Any

from worker.announcements import CLAIM_S, LIFETIME_S
from worker.observer import HEARTBEAT_S, PRESSED_S, SOONEST_S, WORKERS_PRESSED
from worker.placement import decide
from worker.placement_view import Demand, Held, Rules, View

FRESH_S = 0.4
"""Seconds for which workers share one look at a queue, as in `worker.announcement_script`."""

RATE_S = 5.0
"""Seconds over which answers are counted, as there."""


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


class SharedQueue(World):
    """One queue for everything: whoever is free takes the next message, loads what it wants and evicts the oldest."""

    def __init__(self, plan: Plan, seed: int) -> None:
        """Make the queue."""
        self._line: deque[str] = deque()
        self._free: dict[Worker, None] = {}
        self._wanted: dict[
            Worker, tuple[str, float]
        ] = {}  # for which checkpoint a worker loads, and for a message of when
        super().__init__(plan, seed)

    def born(self, worker: Worker) -> None:
        """Wait for a message, or take one."""
        self.free(worker)

    def arrived(self, name: str) -> None:
        """Whoever has waited longest takes it."""
        self._line.append(name)
        if self._free:
            worker = next(iter(self._free))
            del self._free[worker]
            self.free(worker)

    def free(self, worker: Worker) -> None:
        """Take the next message; it is answered once its checkpoint is there."""
        wanted = self._wanted.pop(worker, None)
        if wanted is not None:
            name, at = wanted
            self.queues[name].appendleft(at)
            self.take(worker, name)
        elif not self._line:
            self._free[worker] = None
        else:
            name = self._line.popleft()
            if name in worker.held:
                self.take(worker, name)
            else:
                self._wanted[worker] = (name, self.queues[name].popleft())
                self.load(worker, name)

    def unanswered(self) -> list[float]:
        """Those for which a worker is loading too."""
        return super().unanswered() + [at for _, at in self._wanted.values()]

    def gone(self, worker: Worker) -> None:
        """A message that it was loading for comes back too."""
        self._free.pop(worker, None)
        wanted = self._wanted.pop(worker, None)
        if wanted is not None:
            self.after(self.plan.visibility_s, self._back, wanted[0])


class FixedAssignment(World):
    """Each worker holds the same checkpoints for ever, dealt out by the popularity that is known at the start."""

    def __init__(self, plan: Plan, seed: int) -> None:
        """Deal the places out: one to each checkpoint, the rest by popularity."""
        self._idle: dict[str, dict[Worker, None]] = {name: {} for name in plan.names}
        slots = plan.workers * plan.capacity
        wanted = [max(1.0, share * slots) for share in plan.popularity()]
        dealt: list[str] = []
        given = [0] * plan.checkpoints
        for _ in range(slots):
            place = max(range(plan.checkpoints), key=lambda place: wanted[place] / (given[place] + 1))
            given[place] += 1
            dealt.append(plan.names[place])
        dealt.sort()
        self._of = [tuple(dict.fromkeys(dealt[place :: plan.workers])) for place in range(plan.workers)]
        super().__init__(plan, seed)

    def born(self, worker: Worker) -> None:
        """Load what its place says."""
        for name in self._of[worker.place]:
            self.load(worker, name)

    def arrived(self, name: str) -> None:
        """An idle worker that holds it takes it."""
        if self._idle[name]:
            worker = next(iter(self._idle[name]))
            self._begins(worker)
            self.take(worker, name)

    def free(self, worker: Worker) -> None:
        """Take the message that has waited longest."""
        waiting = [name for name in worker.held if self.queues[name]]
        if worker.busy is not None:
            return
        if waiting:
            self._begins(worker)
            self.take(worker, min(waiting, key=lambda name: self.queues[name][0]))
        else:
            for name in worker.held:
                self._idle[name][worker] = None

    def gone(self, worker: Worker) -> None:
        """Nobody waits for it."""
        self._begins(worker)

    def _begins(self, worker: Worker) -> None:
        for name in worker.held:
            self._idle[name].pop(worker, None)


class Placed(World):
    """`worker.placement.decide` for every worker, obeyed as `worker.observer` and `worker.queue_order` do."""

    def __init__(self, plan: Plan, seed: int, rules: Rules | None = None) -> None:
        """Make what workers tell each other."""
        self.rules = rules or replace(Rules(), load_s=plan.load_s)
        self._holders = dict.fromkeys(plan.names, 0)
        self._loaders = dict.fromkeys(plan.names, 0)
        self._claims: dict[str, Worker] = {}
        self._lively = dict.fromkeys(plan.names, 0.0)
        self._buckets: dict[str, tuple[int, int, int]] = dict.fromkeys(plan.names, (0, 0, 0))
        self._looks: dict[str, tuple[float, Demand]] = {}
        self._readers: dict[str, dict[Worker, None]] = {name: {} for name in plan.names}
        self._ticks = count(1)
        super().__init__(plan, seed)

    # --- messages ---

    def arrived(self, name: str) -> None:
        """An idle worker that reads the queue takes it; one that reads it cold begins to load."""
        for worker in self._readers[name]:
            self._rest(worker)
            self._next(worker)
            return

    def free(self, worker: Worker) -> None:
        """Look whether there is more; tell the others of a load at once."""
        if worker.busy is None:
            self._next(worker)

    def take(self, worker: Worker, name: str) -> None:
        """Note that somebody answers."""
        worker.turns[name] = next(self._ticks)
        self._lively[name] = self.now
        second = int(self.now / RATE_S)
        bucket, current, before = self._buckets[name]
        if bucket != second:
            current, before = 0, current if bucket == second - 1 else 0
        self._buckets[name] = (second, current + 1, before)
        super().take(worker, name)

    def _next(self, worker: Worker) -> None:
        if worker.busy is None:
            for name in sorted(worker.warm, key=lambda name: worker.turns.get(name, 0)):
                if self.queues[name] and name in worker.held:
                    self.take(worker, name)
                    break
        for name in worker.cold:
            if self.queues[name]:
                self._begin(worker, name)
        self._wait(worker)

    def _wait(self, worker: Worker) -> None:
        """Be there for the messages that come, as far as this worker could do something about them."""
        if worker.busy is None:
            for name in worker.warm:
                self._readers[name][worker] = None
        if not worker.loading:
            for name in worker.cold:
                self._readers[name][worker] = None

    def _rest(self, worker: Worker) -> None:
        for name in (*worker.warm, *worker.cold):
            self._readers[name].pop(worker, None)

    # --- checkpoints ---

    def _begin(self, worker: Worker, name: str) -> None:
        """Load, if nothing else is being loaded."""
        if name not in worker.held and not worker.loading:
            young = [one for one, since in worker.held.items() if self.now - since < self.rules.dwell_s]
            self.load(worker, name, (*worker.evict, *(one for one in worker.held if one not in young)))
            self._count(self._loaders, name, 1)
            self._lively[name] = self.now
            self.after(SOONEST_S, self._beat, worker, worker.beat)  # the others are told, and the claim given up

    def drop(self, worker: Worker, name: str) -> None:
        """Tell that it has gone."""
        super().drop(worker, name)
        self._count(self._holders, name, -1)

    def _loaded(self, worker: Worker, name: str) -> None:
        if worker.alive:
            self._count(self._loaders, name, -1)
            self._count(self._holders, name, 1)
            self._lively[name] = self.now
            super()._loaded(worker, name)
            self._beat(worker, worker.beat)

    def _count(self, of: dict[str, int], name: str, more: int) -> None:
        of[name] += more
        self._looks.pop(name, None)

    # --- heartbeats ---

    def born(self, worker: Worker) -> None:
        """Not all at the same moment."""
        self.after(self.random.random() * HEARTBEAT_S, self._beat, worker, worker.beat)

    def gone(self, worker: Worker) -> None:
        """What it announced stands for a while."""
        self._rest(worker)
        self.after(LIFETIME_S, self._forget, worker)
        self.after(CLAIM_S, self._give_up, worker, frozenset())

    def _forget(self, worker: Worker) -> None:
        for name in worker.held:
            self._count(self._holders, name, -1)
        for name in worker.loading:
            self._count(self._loaders, name, -1)

    def _give_up(self, worker: Worker, kept: frozenset[str]) -> None:
        for name in worker.claims - kept:
            del self._claims[name]
            self._looks.pop(name, None)
        worker.claims &= kept

    def _beat(self, worker: Worker, beat: int) -> None:
        if not worker.alive or beat != worker.beat:
            return
        worker.beat += 1
        decision = decide(self._view(worker), self.rules)
        self._give_up(worker, decision.claims)
        if not decision.claims <= worker.claims:  # a claim is told at once, and what comes of it is decided upon
            for name in decision.claims:
                if self._claims.setdefault(name, worker) is worker:
                    worker.claims.add(name)
                    self._looks.pop(name, None)
            decision = decide(self._view(worker), self.rules)
            self._give_up(worker, decision.claims)
        self._rest(worker)
        worker.warm = tuple(name for name in decision.read if name in worker.held)
        worker.cold = tuple(name for name in decision.read if name not in worker.held and name not in worker.loading)
        worker.evict = decision.evict
        for name in decision.load:
            self._begin(worker, name)
        self._next(worker)
        waits = any(self.queues[name] for name in decision.claims)
        pressed = waits or decision.evict or decision.load or decision.after
        crowd = PRESSED_S * max(1.0, self.plan.workers / WORKERS_PRESSED)
        self.after(min(HEARTBEAT_S, crowd) if pressed else HEARTBEAT_S, self._beat, worker, worker.beat)

    def _view(self, worker: Worker) -> View:
        if worker.busy:
            worker.idle_since = self.now  # looked at with each heartbeat, and not between, as a worker does
        demand = {name: self._look(name) for name in self.queues}
        for name in worker.held:
            demand[name] = replace(demand[name], holders=demand[name].holders - 1)
        for name in worker.loading:
            demand[name] = replace(demand[name], loaders=demand[name].loaders - 1)
        for name in worker.claims:
            demand[name] = replace(demand[name], claimed=False)
        return View(
            now=self.now,
            serves=self.plan.names,
            capacity=self.plan.capacity,
            held=tuple(Held(name, since, int(worker.busy == name)) for name, since in worker.held.items()),
            loading=frozenset(worker.loading),
            demand=demand,
            claims=frozenset(worker.claims),
            idle_s=self.now - worker.idle_since,
            workers=self.plan.workers,
        )

    def _look(self, name: str) -> Demand:
        known = self._looks.get(name)
        if known is not None and self.now - known[0] < FRESH_S:
            return known[1]
        queue = self.queues[name]
        second = int(self.now / RATE_S)
        bucket, current, before = self._buckets[name]
        recent = current + before if bucket == second else current if bucket == second - 1 else 0
        looked = Demand(
            depth=len(queue),
            age=self.now - queue[0] if queue else 0.0,
            holders=self._holders[name],
            loaders=self._loaders[name],
            rate=recent / (RATE_S + self.now - second * RATE_S),
            claimed=name in self._claims,
            quiet=self.now - max(self._lively[name], queue[0]) if queue else 0.0,
        )
        self._looks[name] = (self.now, looked)
        return looked


POLICIES: Mapping[str, Callable[[Plan, int], World]] = {
    "placement": Placed,
    "least recently used, shared queue": SharedQueue,
    "fixed assignment": FixedAssignment,
}


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
