"""Which checkpoints are in memory: builds, uses, and who has to go. Loads nothing itself and fires no hook.

The Router hands in how to build a checkpoint and fires `on_evict` and `on_load` for what is reported back. A build
never holds up a request for a checkpoint that is resident; threads that want the same checkpoint share one build.
"""

from __future__ import annotations

import copy
import gc
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

REMEMBER_FAILURE_S = 5.0
"""Seconds for which a failed build is not tried again, so that a broken checkpoint cannot stop a process."""

DRAIN_S = 30.0
"""Seconds that an eviction before a build waits for calls that still use the victim's memory."""


OnChange = Callable[[Sequence[str], tuple[str, Any] | None], None]
"""Takes the names that were evicted, and the name and Agent that were built, if any."""


@dataclass(frozen=True, slots=True)
class ResidentView:
    """A resident checkpoint as the choice of victims sees it.

    Attributes:
        size: what it takes: 1 where checkpoints are counted, else bytes.
        pinned: it never goes.
        rank: those of a lower rank go first, whatever their use: see `Residency.ranks`.
    """

    name: str
    in_use: bool
    size: int = 1
    pinned: bool = False
    rank: int = 0


def choose_victims(residents: Sequence[ResidentView], room_for: int) -> list[str]:
    """Who has to go so that no more than `room_for` stays: least recently used first, those in use last.

    Args:
        residents: those that are there, least recently used first.
        room_for: how many checkpoints (or bytes) of them may stay, 0 or more. What is pinned stays in any case.
    """
    surplus = sum(resident.size for resident in residents) - max(0, room_for)
    victims: list[str] = []
    # Stable: keeps the order of use.
    for resident in sorted(residents, key=lambda resident: (resident.rank, resident.in_use)):
        if surplus <= 0:
            break
        if not resident.pinned:
            victims.append(resident.name)
            surplus -= resident.size
    return victims


class NoRoom(RuntimeError):
    """What is pinned leaves no room for a checkpoint."""


@dataclass(slots=True)
class _Resident:
    agent: Any
    users: Counter[object] = field(default_factory=Counter)  # chain of calls to the number of its uses in flight
    size: int = 1


@dataclass(slots=True, eq=False)
class _Build:
    """A build under way; its waiters are counted so that its result is in use before anybody could evict it."""

    done: threading.Event = field(default_factory=threading.Event)
    waiters: Counter[object] = field(default_factory=Counter)  # chain to its waiting calls, the builder's included
    resident: _Resident | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Failure:
    error: Exception
    until: float


_build_turn = threading.Lock()
"""One build at a time in a process: two would double the peak of memory and share the disk's bandwidth."""


_chain: ContextVar[object | None] = ContextVar("laya_chain_of_calls", default=None)
"""What a call and the calls that its hooks make have in common. Not the thread: a timed hook runs in one of its own."""


class Residency:
    """The checkpoints of one Router that are in memory, least recently used first. Safe to use from many threads."""

    def __init__(
        self,
        max_loaded: int,
        *,
        evict_first: bool = False,
        on_change: OnChange,
        estimate: Callable[[str], int] = lambda _: 1,
        measure: Callable[[str, Any], int] = lambda _name, _agent: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep at most `max_loaded` checkpoints, or bytes.

        `on_change(evicted, built)` is called once a load that changed something, outside every lock and in the thread
        that did it: the names that went, in order, and the name and Agent that came, or None when the build failed.
        `estimate(name)` is what a checkpoint will take of `max_loaded` before it is built, `measure(name, agent)` what
        it takes then.
        """
        self.max_loaded = max_loaded
        self.evict_first = evict_first
        self.pinned: frozenset[str] = frozenset()
        self.ranks: Callable[[], Mapping[str, int]] = dict
        self._estimate, self._measure = estimate, measure
        self._on_change = on_change
        self._clock = clock
        self._residents: OrderedDict[str, _Resident] = OrderedDict()
        self._builds: dict[str, _Build] = {}
        self._failures: dict[str, _Failure] = {}
        self._used_on: list[Counter[object]] = []  # users of checkpoints that were let go while calls used them
        self._changed = threading.Condition()  # guards the three tables; never held during a build or a hook

    @property
    def names(self) -> list[str]:
        """Resident names, least recently used first."""
        with self._changed:
            return list(self._residents)

    @property
    def building(self) -> list[str]:
        """Names that are being built, or wait for their turn."""
        with self._changed:
            return list(self._builds)

    @property
    def sizes(self) -> dict[str, int]:
        """Resident name to what it takes of `max_loaded`, least recently used first."""
        with self._changed:
            return {name: resident.size for name, resident in self._residents.items()}

    @contextmanager
    def use(self, name: str, build: Callable[[], Any]) -> Iterator[Any]:
        """The Agent of `name`, in use for the block, built with `build` if it is not resident."""
        chain = _chain.get() or object()
        before = _chain.set(chain)
        try:
            agent, resident = self._acquire(name, build, chain)
            try:
                yield agent
            finally:
                # An evicted Agent is freed when its last user lets go, which is here.
                users = resident.users
                del agent, resident
                self._release(users, chain)
        finally:
            _chain.reset(before)

    def get(self, name: str, build: Callable[[], Any]) -> Any:
        """The Agent of `name`, built if it is not resident; nothing keeps it from being evicted afterwards."""
        with self.use(name, build) as agent:
            return agent

    def peek(self, name: str) -> Any | None:
        """The Agent of `name` if it is resident. No use of it: it stays as near to being evicted as it was."""
        with self._changed:
            resident = self._residents.get(name)
            return None if resident is None else resident.agent

    def put(self, name: str, agent: Any) -> None:
        """Make a finished Agent resident under `name`, with room for it beside what is there."""
        with self._changed:
            self._residents[name] = _Resident(agent, size=self._measure(name, agent))
            self._residents.move_to_end(name)
            self._failures.pop(name, None)
            self.max_loaded = max(self.max_loaded, sum(resident.size for resident in self._residents.values()))

    def drop(self, name: str) -> bool:
        """Let go of `name`; whether it was resident. Its memory is free once calls in flight have ended."""
        with self._changed:
            resident = self._residents.pop(name, None)
            self._failures.pop(name, None)
            if resident is not None and resident.users:
                self._used_on.append(resident.users)
        was_resident = resident is not None
        del resident
        if was_resident:
            free_memory()
        return was_resident

    def forget_failure(self, name: str) -> None:
        """Let the next load of `name` try again at once."""
        with self._changed:
            self._failures.pop(name, None)

    def _acquire(self, name: str, build: Callable[[], Any], chain: object) -> tuple[Any, _Resident]:
        while True:
            with self._changed:
                resident = self._residents.get(name)
                if resident is not None:
                    resident.users[chain] += 1
                    self._residents.move_to_end(name)
                    return resident.agent, resident
                under_way = self._builds.get(name)
                joined = under_way is not None
                if under_way is None:
                    self._refuse_remembered(name)
                    self._builds[name] = under_way = _Build()
                under_way.waiters[chain] += 1
            if not joined:
                return self._build(name, under_way, build, chain)
            self._wait_for(under_way, chain)
            if under_way.resident is not None:
                return under_way.resident.agent, under_way.resident
            if isinstance(under_way.error, Exception):
                raise _again(under_way.error)
            # The building thread was interrupted (Ctrl-C, SystemExit), which is no answer for this one: build it here.

    def _wait_for(self, build: _Build, chain: object) -> None:
        try:
            build.done.wait()
        except BaseException:
            # Interrupted: what comes of the build must not count this call as a user for ever.
            with self._changed:
                build.waiters[chain] -= 1
                self._changed.notify_all()
            raise

    def _build(self, name: str, mine: _Build, build: Callable[[], Any], chain: object) -> tuple[Any, _Resident]:
        evicted: list[str] = []
        try:
            with _build_turn:
                self._check_room(name)
                if self.evict_first:
                    evicted += self._make_room(self._estimate(name), chain)
                self._free_used_on()
                resident = self._register(name, mine, build())
                evicted += self._make_room(0, chain, keep=name)
        except BaseException as error:
            self._fail(name, mine, error)
            try:
                if evicted:
                    self._on_change(evicted, None)
            except BaseException as second:  # noqa: BLE001  # the build's own failure is what the caller must see
                error.add_note(f"then reporting the evictions {evicted} failed: {second!r}")
            raise
        try:
            self._on_change(evicted, (name, resident.agent))
        except BaseException:
            self._release(resident.users, chain)
            raise
        return resident.agent, resident

    def _register(self, name: str, mine: _Build, agent: Any) -> _Resident:
        resident = _Resident(agent, mine.waiters, self._measure(name, agent))
        with self._changed:
            self._residents[name] = mine.resident = resident
            del self._builds[name]
        mine.done.set()
        return resident

    def _fail(self, name: str, mine: _Build, error: BaseException) -> None:
        with self._changed:
            mine.error = error
            if self._builds.get(name) is mine:
                del self._builds[name]
            if isinstance(error, Exception):
                bare = _again(error)
                bare.__cause__ = None  # its traceback would keep the frames of the failed build, and their memory
                self._failures[name] = _Failure(bare, self._clock() + REMEMBER_FAILURE_S)
        mine.done.set()

    def _check_room(self, name: str) -> None:
        """Refuse a build for which there would be no room if everything went that may go."""
        sizes, pinned = self.sizes, self.pinned - {name}
        held = sum(size for one, size in sizes.items() if one in pinned)
        if held and held + self._estimate(name) > self.max_loaded:
            names = ", ".join(one for one in sizes if one in pinned)
            raise NoRoom(f"there is no room for {name!r} beside what is pinned: {names}")

    def _make_room(self, extra: int, chain: object, keep: str | None = None) -> list[str]:
        """Evict until `extra` more fits beside those that stay; with evict_first, wait until their memory is free."""
        ranks = self.ranks()
        with self._changed:
            candidates = [
                ResidentView(
                    name,
                    in_use=resident.users.total() > 0,
                    size=resident.size,
                    pinned=name in self.pinned,
                    rank=ranks.get(name, 0),
                )
                for name, resident in self._residents.items()
                if name != keep
            ]
            kept = 0 if keep is None or keep not in self._residents else self._residents[keep].size
            victims = choose_victims(candidates, self.max_loaded - extra - kept)
            gone = [self._residents.pop(name) for name in victims]
            self._used_on += [resident.users for resident in gone if resident.users]
            if self.evict_first and gone:
                # A call whose hook wants this build cannot end while we wait, so its use of a victim does not count.
                self._changed.wait_for(
                    lambda: all(users <= 0 for one in gone for who, users in one.users.items() if who is not chain),
                    timeout=DRAIN_S,
                )
        if gone:
            del gone
            free_memory()
        return victims

    def _free_used_on(self) -> None:
        """Give back the memory of what was let go while calls used it, as far as these have ended."""
        with self._changed:
            still = [users for users in self._used_on if users.total() > 0]
            ended = len(self._used_on) > len(still)
            self._used_on = still
        if ended:
            free_memory()

    def _release(self, users: Counter[object], chain: object) -> None:
        with self._changed:
            users[chain] -= 1
            if not users[chain]:
                del users[chain]
            self._changed.notify_all()

    def _refuse_remembered(self, name: str) -> None:
        failure = self._failures.get(name)
        if failure is None:
            return
        left = failure.until - self._clock()
        if left <= 0:
            del self._failures[name]
            return
        error = _again(failure.error)
        error.add_note(f"this build failed a moment ago and is tried again in {left:.1f} s at the earliest")
        raise error


def _again(error: BaseException) -> Any:
    """The same error for another thread to raise: two threads must not share one traceback."""
    fresh: Any = RuntimeError(f"{type(error).__name__}: {error}")
    for rebuild in (copy.copy, _rebuild_without_init):
        try:
            fresh = rebuild(error)
            break
        except Exception:  # noqa: BLE001, S112  # an error class whose arguments do not rebuild it
            continue
    if hasattr(error, "__notes__"):
        fresh.__notes__ = list(error.__notes__)  # a copy shares the list, and others add to it
    fresh.__traceback__ = None
    fresh.__cause__ = error
    return fresh


def _rebuild_without_init(error: BaseException) -> BaseException:
    """A copy for a class whose constructor wants more than the arguments that an error keeps."""
    fresh = type(error).__new__(type(error), *error.args)
    fresh.__dict__.update(vars(error))
    return fresh


def free_memory() -> None:
    """Give back the memory of what nothing refers to any more (dropped Agents, failed passes), on the device too."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
    elif torch.xpu.is_available() and torch.xpu.is_initialized():
        torch.xpu.empty_cache()
