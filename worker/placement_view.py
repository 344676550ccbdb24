"""What placement decides from and what it comes to: a worker's view of one moment, the rules, the decision.

Plain data. `worker.placement` makes the one of the other; where a view comes from is `worker.observer`'s matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


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
