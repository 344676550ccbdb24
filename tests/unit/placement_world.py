"""A world of workers that place checkpoints by `decide`, in steps of a simulated clock: no server, no process."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from worker.placement import decide
from worker.placement_view import Demand, Held, Rules, View

TICK_S = 1.0


@dataclass(slots=True)
class Worker:
    capacity: int
    held: dict[str, float] = field(default_factory=dict)  # least recently used first
    loading: dict[str, float] = field(default_factory=dict)  # until when
    failed_until: dict[str, float] = field(default_factory=dict)
    idle_since: float = 0.0
    alive: bool = True


class World:
    """Workers, queues and claims."""

    def __init__(self, names: Sequence[str], workers: int, capacity: int, rules: Rules, pace: float = 50.0) -> None:
        self.names, self.rules, self.pace = tuple(names), rules, pace
        self.workers = [Worker(capacity) for _ in range(workers)]
        self.queues: dict[str, deque[float]] = {name: deque() for name in names}
        self.claims: dict[str, int] = {}
        self.now = 1000.0
        self.loads = 0
        self.evictions: list[tuple[int, str, float]] = []  # worker, checkpoint, how long it had been resident
        self.waited: list[float] = []
        self.broken: set[tuple[int, str]] = set()
        self._served: dict[str, deque[tuple[float, int]]] = defaultdict(deque)
        self._lively: dict[str, float] = defaultdict(float)

    def send(self, name: str, count: int = 1) -> None:
        self.queues[name].extend([self.now] * count)

    def oldest(self) -> float:
        return max((self.now - queue[0] for queue in self.queues.values() if queue), default=0.0)

    def holders(self, name: str) -> int:
        return sum(worker.alive and name in worker.held for worker in self.workers)

    def view(self, number: int) -> View:
        worker = self.workers[number]
        others = [other for other in self.workers if other.alive and other is not worker]
        demand = {
            name: Demand(
                depth=len(queue),
                age=self.now - queue[0] if queue else 0.0,
                holders=sum(name in other.held for other in others),
                loaders=sum(name in other.loading for other in others),
                rate=sum(count for at, count in self._served[name] if at > self.now - 5) / 5,
                claimed=self.claims.get(name, number) != number,
                quiet=self.now - max(self._lively[name], queue[0] if queue else self.now),
                failures=sum(other.failed_until.get(name, 0) > self.now for other in [*others, worker]),
            )
            for name, queue in self.queues.items()
        }
        return View(
            now=self.now,
            serves=self.names,
            capacity=worker.capacity,
            held=tuple(Held(name, since) for name, since in worker.held.items()),
            loading=frozenset(worker.loading),
            demand=demand,
            claims=frozenset(name for name, owner in self.claims.items() if owner == number),
            failed_until=worker.failed_until,
            idle_s=self.now - worker.idle_since,
            workers=len(others) + 1,
        )

    def step(self) -> None:
        """One heartbeat of every worker, and what is answered until the next."""
        for number, worker in enumerate(self.workers):
            if worker.alive:
                self._beat(number, worker)
        self.now += TICK_S

    def kill(self, number: int) -> None:
        self.workers[number] = Worker(self.workers[number].capacity, alive=False)
        self.claims = {name: owner for name, owner in self.claims.items() if owner != number}

    def _beat(self, number: int, worker: Worker) -> None:
        for name in [name for name, until in worker.loading.items() if until <= self.now]:
            del worker.loading[name]
            if (number, name) in self.broken:
                worker.failed_until[name] = self.now + 30
            else:
                worker.held[name] = self._lively[name] = self.now
        for _ in range(2):  # as a worker does, which decides again as soon as it has heard of a new claim
            decision = decide(self.view(number), self.rules)
            for name in [one for one, owner in self.claims.items() if owner == number and one not in decision.claims]:
                del self.claims[name]
            for name in decision.claims:
                self.claims.setdefault(name, number)
        left = self.pace * TICK_S
        for name in decision.read:
            if name in decision.fail:
                self.queues[name].clear()
            elif name in worker.held:
                left -= self._answer(name, worker, left)
            elif self.queues[name] and not worker.loading:
                self._begin_load(number, worker, name, decision.evict)

    def _answer(self, name: str, worker: Worker, most: float) -> int:
        queue, count = self.queues[name], 0
        while queue and count < most:
            self.waited.append(self.now - queue.popleft())
            count += 1
        if count:
            worker.held[name] = worker.held.pop(name)
            worker.idle_since = self._lively[name] = self.now
            self._served[name].append((self.now, count))
        return count

    def _begin_load(self, number: int, worker: Worker, name: str, evict: Sequence[str]) -> None:
        while len(worker.held) + 1 > worker.capacity:
            victim = next(one for one in (*evict, *worker.held) if one in worker.held)
            self.evictions.append((number, victim, self.now - worker.held.pop(victim)))
        self.loads += 1
        self._lively[name] = self.now
        worker.loading[name] = self.now + self.rules.load_s
