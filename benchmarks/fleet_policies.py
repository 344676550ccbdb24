"""What the workers of a simulated fleet do next: as `worker.placement` decides, or as two simpler policies would.

Each is a `benchmarks.fleet_sim.World`, and all see the same messages and the same deaths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

from benchmarks.fleet_sim import Plan, Worker, World
from worker.announcements import CLAIM_S, LIFETIME_S
from worker.observer import HEARTBEAT_S, PRESSED_S, SOONEST_S, WORKERS_PRESSED
from worker.placement import decide
from worker.placement_view import Demand, Held, Rules, View

FRESH_S = 0.4
"""Seconds for which workers share one look at a queue, as in `worker.announcement_script`."""

RATE_S = 5.0
"""Seconds over which answers are counted, as there."""


class SharedQueue(World):
    """One queue for everything: whoever is free takes the next message, loads what it wants and evicts the oldest."""

    def __init__(self, plan: Plan, seed: int) -> None:
        """Make the queue."""
        self._line: deque[str] = deque()
        self._free: dict[Worker, None] = {}
        # For which checkpoint a worker loads, and for a message of when.
        self._wanted: dict[Worker, tuple[str, float]] = {}
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
