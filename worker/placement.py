"""Which queues a worker reads now, and which checkpoints it claims: a pure function of a view and a clock.

`decide(view, rules)` is all there is. A view is what one worker knows at one moment: what it holds, what waits, how
many others hold what. Where that knowledge comes from is `worker.announcements`, when it is asked for and who obeys
the decision `worker.observer` and `worker.queue_order`. Times are seconds of one clock, ages seconds.
"""

from __future__ import annotations

import math
from typing import Final

from worker.placement_view import Decision, Demand, Held, Rules, View

IDLE_LOADS: Final = 0.1
"""Load times that an unserved queue waits before an idle checkpoint goes for it: a worker with room comes first."""

COPY_LOADS: Final = 0.5
"""The same where a checkpoint goes that is asked for and that others hold too."""

LAST_COPY: Final = 1.5
"""Times as long that a served queue waits for help where the last copy of a checkpoint would go for it."""

QUIET_LOADS: Final = 2
"""Load times beside a dwell time after which holders that answer nothing count for nobody: they may have just begun."""

LONG_LOADS: Final = 4
"""Load times beside a dwell time after which a message waits no longer for requests in hand of what goes for it."""


SLACK_S: Final = 4.0
"""Seconds at most from a worker being able to serve a queue to its reading it, its load apart: a heartbeat to see the
message, one to hear of the claim, a second until the wire asks for the queue, one for what is in hand."""

_NOTHING: Final = Demand()


def decide(view: View, rules: Rules) -> Decision:
    """What to read, claim, evict and load now.

    A resident checkpoint's queue is read always, unless the checkpoint is about to go. Of the others, those that nobody
    sees to come first, the one whose message has waited longest before the rest; then those where a further worker is
    worth its load. At most one of them at a time makes others go.
    """
    return _Choice(view, rules).made()


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
        cold.sort(key=lambda name: (self._of(name).depth == 0, name not in view.claims, -self._of(name).age))
        fail = tuple(name for name in cold if self._is_hopeless(name))
        able = [name for name in cold if not self._is_unable(name)]
        unserved = [name for name in able if self._is_unserved(name)]
        for name in unserved:
            if self._of(name).depth:
                self._consider(name, self._patience(name))
        for name in able:
            if name not in unserved and self._needs_help(name):
                self._consider(name, self._help_patience(name))
        for name in unserved:  # room that nothing waits for is the last to be given away
            if not self._of(name).depth:
                self._consider(name, self._patience(name))
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
        return demand.depth > 0 and demand.quiet > self._rules.dwell_s + QUIET_LOADS * self._load_s(name)

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

    def _claim(self, name: str, *, ready: bool = True) -> None:
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
        """Seconds after which a message no longer waits for what is in hand here."""
        return self._rules.dwell_s + LONG_LOADS * self._load_s(name)

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
        """How much a checkpoint is missed when it goes: 0 idle, 1 wanted and held by others too, 2 wanted and alone."""
        demand = self._of(held.name)
        if demand.depth == 0 and held.at_work == 0:
            return 0
        return 1 if demand.holders else 2

    def _patience(self, name: str) -> float:
        """Seconds that the oldest message of an unserved queue waits before this worker claims it."""
        victims = self._victims(self._size(name) - self._free)
        worst = max(map(self._reluctance, victims), default=-1)
        # By `_reluctance` of the victim that is missed most; there is none where there is room, or nobody may go.
        loads = (IDLE_LOADS, COPY_LOADS, self._rules.switch, 0.0)[worst]
        return loads * self._load_s(name)

    def _help_patience(self, name: str) -> float:
        """The same where others see to it already."""
        victims = self._victims(self._size(name) - self._free)
        last_copies = any(self._of(victim.name).holders == 0 for victim in victims)
        return self._rules.explain * self._load_s(name) * (LAST_COPY if last_copies else 1.0)
