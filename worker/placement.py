"""Which queues a worker reads now, and which checkpoints it claims: a pure function of a view and a clock.

`decide(view, rules)` is all there is. A view is what one worker knows at one moment: what it holds, what waits, how
many others hold what. Where that knowledge comes from is `worker.announcements`, when it is asked for and who obeys
the decision `worker.observer` and `worker.queue_order`. Times are seconds of one clock, ages seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Rules:
    """What decisions are weighed with.

    Attributes:
        dwell_s: a checkpoint is not evicted for another's sake before it has been resident for so long.
        load_s: what a load is taken to cost where nobody has measured it.
        explain: load times that the oldest message of a served queue waits before another worker helps, if that
            worker would not have to evict the last copy of something.
        switch: load times that the oldest message of an unserved queue waits before a worker leaves a queue on which
            it is busy and alone.
        idle_s: a worker with no request in hand for so long is idle.
        eager_s: a message of a claimed queue that waits longer has its checkpoint loaded without being read first.
        hopeless_s: a message that waits longer for a checkpoint which cannot be loaded here, and which nobody else
            sees to, is answered with the error, whatever others might do some day.
    """

    dwell_s: float = 10.0
    load_s: float = 3.0
    explain: float = 0.5
    switch: float = 2.0
    idle_s: float = 0.5
    eager_s: float = 2.0
    hopeless_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Held:
    """A checkpoint that this worker has in memory.

    Attributes:
        since: when it became resident.
        at_work: requests in hand here that want it.
        pinned: never evicted.
        size: what it takes of `View.capacity`.
    """

    name: str
    since: float
    at_work: int = 0
    pinned: bool = False
    size: int = 1


@dataclass(frozen=True, slots=True)
class Demand:
    """What waits for a checkpoint, and which other workers see to it.

    Attributes:
        depth: messages waiting.
        age: seconds that the oldest of them has waited.
        holders, loaders: live workers other than this one that hold it, or are loading it.
        rate: requests for it that were answered a second lately, by all workers.
        claimed: another worker has the claim.
        failures: live workers, this one included, that cannot load it now.
        quiet: seconds for which messages have waited and nobody has answered one, nor come to hold or load it.
    """

    depth: int = 0
    age: float = 0.0
    holders: int = 0
    loaders: int = 0
    rate: float = 0.0
    claimed: bool = False
    failures: int = 0
    quiet: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """What a worker knows at one moment.

    Attributes:
        now: the clock of `Held.since` and `failed_until`.
        serves: names of the checkpoints that this worker may serve.
        held: those in memory, least recently used first.
        loading: those being built here now.
        demand: by name; None when the server cannot be asked. A name that it lacks has no demand.
        claims: names that this worker has the claim of.
        failed_until: name to the time before which it is not tried here again.
        idle_s: seconds since this worker had a request in hand.
        capacity: how much may be held: a number of checkpoints, or bytes.
        sizes: what a checkpoint takes of it that is not held; 1 where it is not said.
        load_s: seconds that a checkpoint's load takes; `Rules.load_s` where it is not said.
        workers: live workers, this one included.
    """

    now: float
    serves: tuple[str, ...]
    capacity: int
    held: tuple[Held, ...] = ()
    loading: frozenset[str] = frozenset()
    demand: Mapping[str, Demand] | None = field(default_factory=lambda: MappingProxyType({}))
    claims: frozenset[str] = frozenset()
    failed_until: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    idle_s: float = 0.0
    sizes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    load_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """What a worker does until it decides again.

    Attributes:
        read: checkpoints whose queues are read, resident ones first. A resident one that it lacks is to be evicted.
        claims: names to claim, or whose claim to keep; every other claim of this worker is given up.
        evict: resident checkpoints that may go now, the first of them first.
        load: names to load without waiting for a message to be read.
        after: names that it would claim if another worker had not done so.
        fail: names whose messages are to be read although nobody can load them: each is answered with the error.
    """

    read: tuple[str, ...]
    claims: frozenset[str] = frozenset()
    evict: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    fail: tuple[str, ...] = ()


def decide(view: View, rules: Rules) -> Decision:
    """What to read, claim, evict and load now.

    A resident checkpoint's queue is read always, unless the checkpoint is about to go. Of the others, those that nobody
    sees to come first, the one whose message has waited longest before the rest; then those where a further worker is
    worth its load. At most one of them at a time makes others go.
    """
    return _Choice(view, rules).made()


SLACK_S: Final = 4.0
"""Seconds at most from a worker being able to serve a queue to its reading it, its load apart: a heartbeat to see the
message, one to hear of the claim, a second until the wire asks for the queue, one for what is in hand."""


def oldest_at_most(rules: Rules, *, load_s: float, checkpoints: int, workers: int, capacity: int) -> float:
    """Seconds that no message waits longer than, where each queue is worked off within a dwell time once it is read.

    There are `slots` = workers x capacity places. A place changes hands after a turn: the dwell time of what is there
    (or the loads of the worker's other places, which follow each other), then a load. The queue that waits longest
    comes next, so at most ceil((checkpoints - slots) / slots) turns go by before its own.
    """
    slots = workers * capacity
    change = load_s + SLACK_S
    turn = max(rules.dwell_s, (capacity - 1) * change) + change
    return rules.switch * load_s + math.ceil(max(0, checkpoints - slots) / slots) * turn + change


class _Choice:
    """One decision in the making."""

    def __init__(self, view: View, rules: Rules) -> None:
        self._view, self._rules = view, rules
        self._demand = view.demand or {}
        self._held = {held.name: held for held in view.held}
        self._free = view.capacity - sum(held.size for held in view.held) - sum(map(self._size, view.loading))
        self._claims: list[str] = []
        self._read: list[str] = []
        self._load: list[str] = []
        self._after: list[str] = []
        self._leaving: tuple[str, ...] = ()

    def made(self) -> Decision:
        view = self._view
        if view.demand is None:
            rest = [name for name in view.serves if name not in self._held]
            return Decision((*reversed(self._held), *rest), view.claims)
        cold = [name for name in view.serves if name not in self._held and name not in view.loading]
        # What nothing waits for may be claimed as well, and must not keep its room from what something waits for.
        cold.sort(key=lambda name: (self._of(name).depth == 0, name not in view.claims, -self._of(name).age))
        fail = tuple(name for name in cold if self._is_hopeless(name))
        able = [name for name in cold if not self._is_unable(name)]
        for name in able:
            if self._is_unserved(name):
                self._consider(name, self._patience(name))
        for name in able:
            if not self._is_unserved(name) and self._needs_help(name):
                self._consider(name, self._help_patience(name))
        resident = sorted(
            (name for name in self._held if name not in self._leaving), key=lambda name: -self._of(name).age
        )
        loading = [name for name in view.serves if name in view.loading]
        return Decision(
            read=tuple(dict.fromkeys((*resident, *loading, *self._read, *fail))),
            claims=frozenset(self._claims),
            evict=self._leaving,
            load=tuple(self._load),
            after=tuple(self._after),
            fail=fail,
        )

    # --- what a checkpoint is like ---

    def _of(self, name: str) -> Demand:
        return self._demand.get(name, _NOTHING)

    def _size(self, name: str) -> int:
        return self._view.sizes.get(name, 1)

    def _load_s(self, name: str) -> float:
        return self._view.load_s.get(name, self._rules.load_s)

    def _is_unserved(self, name: str) -> bool:
        """Whether no other worker sees to it; those that hold it and answer nothing for too long do not."""
        demand = self._of(name)
        if demand.holders + demand.loaders == 0:
            return True
        return demand.depth > 0 and demand.quiet > self._rules.dwell_s + 2 * self._load_s(name)

    def _needs_help(self, name: str) -> bool:
        """Whether what waits outlasts the load of a further worker, and this one has nothing else to do."""
        demand = self._of(name)
        servers = demand.holders + demand.loaders
        if demand.depth == 0 or self._view.idle_s < self._rules.idle_s:
            return False
        if any(self._of(held).depth for held in self._held) or self._view.loading:
            return False
        pace = demand.rate / max(1, demand.holders) * servers
        return demand.depth > pace * self._load_s(name)

    def _has_failed(self, name: str) -> bool:
        return self._view.failed_until.get(name, 0.0) > self._view.now

    def _is_unable(self, name: str) -> bool:
        """Whether it cannot be loaded here: it failed lately, or what is pinned leaves no room."""
        pinned = sum(held.size for held in self._view.held if held.pinned)
        return self._has_failed(name) or (pinned > 0 and pinned + self._size(name) > self._view.capacity)

    def _is_hopeless(self, name: str) -> bool:
        """Whether no worker is left that could load it, so that its messages would wait for nothing.

        One that has no room may soon be joined by one that has, so that takes longer to be sure of.
        """
        demand = self._of(name)
        if demand.depth == 0 or demand.holders + demand.loaders or demand.claimed or not self._is_unable(name):
            return False
        all_failed = self._has_failed(name) and max(1, demand.failures) >= self._view.workers
        return all_failed or demand.age > self._rules.hopeless_s

    # --- who would have to go for it ---

    def _consider(self, name: str, patience: float) -> None:
        """Claim a checkpoint if it fits, or if what has to go for it may go; read it once there is room."""
        demand, mine = self._of(name), name in self._view.claims
        if demand.age < patience and not mine:
            return
        if demand.claimed:
            self._after += [name] * (demand.depth > 0)
            return
        if self._size(name) <= self._free:
            if demand.depth or self._may_reserve(name):
                self._claim(name)
            return
        victims = self._victims(self._size(name) - self._free)
        if demand.depth == 0 or self._leaving or not victims:
            return
        self._leaving = tuple(victim.name for victim in victims)
        self._free += sum(victim.size for victim in victims)
        # A request in hand for what goes would have it loaded again, so it is finished first.
        self._claim(name, ready=not any(victim.at_work for victim in victims) or demand.age > self._long(name))

    def _claim(self, name: str, ready: bool = True) -> None:
        self._free -= self._size(name)
        self._claims.append(name)
        if ready and name in self._view.claims:
            demand = self._of(name)
            self._read.append(name)
            # Help was worth a load, so it is not worth a wait until a message of it has come here.
            if demand.depth and (demand.age > self._rules.eager_s or demand.holders + demand.loaders):
                self._load.append(name)

    def _may_reserve(self, name: str) -> bool:
        """Whether to claim what nothing waits for: up to this worker's share, one more at each decision."""
        share = -(-len(self._view.serves) // max(1, self._view.workers))
        if len(self._held) + len(self._view.loading) + len(self._claims) >= share:
            return False
        return name in self._view.claims or all(claim in self._view.claims for claim in self._claims)

    def _long(self, name: str) -> float:
        return self._rules.dwell_s + 4 * self._load_s(name)

    def _victims(self, needed: int) -> tuple[Held, ...]:
        """Who goes so that `needed` more fits: idle first, then what others hold too, least recently used first."""
        ready = [
            held for held in self._view.held if not held.pinned and self._view.now - held.since >= self._rules.dwell_s
        ]
        ready.sort(key=self._reluctance)
        victims: list[Held] = []
        for held in ready:
            if sum(victim.size for victim in victims) >= needed:
                break
            victims.append(held)
        return tuple(victims) if sum(victim.size for victim in victims) >= needed else ()

    def _reluctance(self, held: Held) -> int:
        demand = self._of(held.name)
        if demand.depth == 0 and held.at_work == 0:
            return 0
        return 1 if demand.holders else 2

    def _patience(self, name: str) -> float:
        """Seconds that the oldest message of an unserved queue waits before this worker claims it."""
        victims = self._victims(self._size(name) - self._free)
        worst = max(map(self._reluctance, victims), default=-1)
        return (0.1, 0.5, self._rules.switch, 0.0)[worst] * self._load_s(name)

    def _help_patience(self, name: str) -> float:
        """The same where others see to it already."""
        victims = self._victims(self._size(name) - self._free)
        last_copies = any(self._of(victim.name).holders == 0 for victim in victims)
        return self._rules.explain * self._load_s(name) * (1.5 if last_copies else 1.0)


_NOTHING = Demand()
