"""Finding the answers to the requests of a batch: all at once, then by waiting for whoever computes what is missing.

A batch starts all its requests before it computes any. So it takes the leases of what is missing together, and once it
has one, others may wait for it and it waits for nobody: it computes what others hold, too. Only a batch that got none
waits. So whoever is waited for never waits, and no two can wait for each other.
"""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hooks.cache_flight import Flight, Flights
from hooks.cache_key import CacheKey
from hooks.cache_places import Found, Places, Wanted, pauses
from hooks.cache_stats import Counters
from hooks.cache_store import MANY, CacheStore, LeftAlone, StoreAway, Turn
from laya.context import Batch


@dataclass(frozen=True, slots=True)
class _Claim:
    """A request that the batch computes for others, too, until one of its own takes the debt over."""

    key: CacheKey
    flight: Flight
    token: str


@dataclass(slots=True)
class _BatchState:
    """What is known of one batch.

    Attributes:
        lock: held by the request that looks for something. They come one after another, but a hook that ran out of
            its time runs on beside the next.
        token: of all its leases.
        data: what the server had, by entry, None for nothing.
        looked: entries whose lease has been asked for.
        claims: those that were given, by entry, until a request takes them.
        until: when the batch has waited enough; None before it has waited for anything.
        away: whether the server failed it: it is asked no more.
        over: whether a request of it has ended, so that no other will start.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    data: dict[str, bytes | None] = field(default_factory=dict)
    looked: set[str] = field(default_factory=set)
    claims: dict[str, _Claim] = field(default_factory=dict)
    until: float | None = None
    away: bool = False
    over: bool = False


class BatchSearch:
    """Looks for the answers to batches. Safe to use from many threads."""

    def __init__(self, places: Places, store: CacheStore, flights: Flights, counters: Counters, lease: float) -> None:
        """Look in these places; 0 seconds of `lease` means that nobody waits for anybody."""
        self._places, self._store = places, store
        self._flights, self._counters, self._lease = flights, counters, lease
        self._states: weakref.WeakKeyDictionary[Batch, _BatchState] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def one_of(self, batch: Batch, wanted: Wanted, keys: Callable[[], Sequence[CacheKey]]) -> Found:
        """Search for the answer to one request of a batch. Those of all its `keys` are looked for the first time.

        `keys` are a guess, made of what the caller asked: a request that a hook rewrote has another, and is looked for
        by itself.
        """
        result = self._places.from_memory(wanted.key)
        if result is not None:
            return Found(result)
        with self._lock:
            state = self._states.get(batch)
            if state is None:
                state = self._states[batch] = _BatchState()
        with state.lock:
            try:
                return self._find(state, wanted, keys)
            finally:
                if state.over:  # this hook ran out of its time long ago
                    self._release(state)

    def over(self, batch: Batch) -> None:
        """A request of the batch has ended: end the leases that none of its requests has taken.

        They were asked for by the keys as the caller made them, and hooks rewrote or answered the requests.
        """
        with self._lock:
            state = self._states.get(batch)
        if state is not None and not state.over:
            state.over = True
            self._release(state)

    def _find(self, state: _BatchState, wanted: Wanted, keys: Callable[[], Sequence[CacheKey]]) -> Found:
        key = wanted.key
        if not state.data and not state.away:
            guessed = {
                each.entry: each for each in keys() if each.entry == key.entry or not self._places.is_in_memory(each)
            }
            # A guess that is wrong about the first is wrong about the others: they are not kept waiting for it.
            missing = list(guessed.values()) if key.entry in guessed else [key]
            self._ask_for(state, list(guessed | {key.entry: key}), missing, wanted)
        elif not state.away and key.entry not in state.data:
            self._ask_for(state, [key.entry], [key], wanted)
        elif not state.away and state.data[key.entry] is None and key.entry not in state.looked:
            self._claim(state, [key], wanted, self._store.deadline())
        if key.entry not in state.data:
            return Found(asked=False)
        data = state.data[key.entry]
        if data is not None:
            result = self._places.answer(key, data, wanted.questions)
            return Found(result, useless=result is None)
        claim = state.claims.pop(key.entry, None)
        return Found() if claim is None else Found(flight=claim.flight, token=claim.token)

    def _ask_for(self, state: _BatchState, entries: Sequence[str], keys: Sequence[CacheKey], wanted: Wanted) -> None:
        """Learn what lies under these entries, and ask for the leases of those keys that lie nowhere."""
        deadline = self._store.deadline(len(entries))
        try:
            state.data.update(zip(entries, self._places.stored(entries, deadline), strict=True))
        except StoreAway:
            state.away = True
            return
        self._claim(state, keys, wanted, deadline)

    def _claim(self, state: _BatchState, keys: Sequence[CacheKey], wanted: Wanted, deadline: float | None) -> None:
        """Take the leases of what lies nowhere; wait while all of it is held by others and there is patience."""
        missing = [key for key in keys if state.data[key.entry] is None and not self._places.is_in_memory(key)]
        if not missing or not self._lease:
            return
        # In one order, so that of two lists with the same requests one gets the leases of all.
        missing.sort(key=lambda key: key.digest)
        state.looked.update(key.entry for key in missing)
        waits = False
        for pause in pauses():
            # Asked each time: hooks of this call that run beside it may have begun to lead something.
            may_wait = time.monotonic() < self._until(state, wanted) and not self._leads(wanted)
            missing = self._look(state, missing, wanted, deadline, may_wait=may_wait)
            if not missing or not may_wait or state.over or self._leads(wanted):
                return
            if not waits:
                waits, deadline = True, None
                self._counters.add(waits=len(missing))
            time.sleep(pause)

    def _look(
        self, state: _BatchState, missing: Sequence[CacheKey], wanted: Wanted, deadline: float | None, *, may_wait: bool
    ) -> list[CacheKey]:
        """Those that others compute. One that `may_wait` asks for no more once it got none of the first ones."""
        held: list[CacheKey] = []
        for start in range(0, len(missing), MANY):
            some = missing[start : start + MANY]
            if held and may_wait and not self._leads(wanted):
                held += some
                continue
            try:
                turns = self._store.look(some, state.token, deadline)
            except StoreAway as away:
                self._places.count(away)
                state.away = True
                # The leases may have been given all the same; ending them is no harm if they were not.
                for key in () if isinstance(away, LeftAlone) else some:
                    self._lead(state, key, wanted, state.token)
                return []
            for key, turn in zip(some, turns, strict=True):
                if isinstance(turn, bytes):
                    state.data[key.entry] = turn
                elif turn is Turn.HELD:
                    held.append(key)
                else:
                    self._lead(state, key, wanted, state.token if turn is Turn.LEASED else "")
        return held

    def _lead(self, state: _BatchState, key: CacheKey, wanted: Wanted, token: str) -> None:
        flight = self._flights.claim(key.entry, wanted.call_id, 2 * self._lease)
        state.claims[key.entry] = _Claim(key, flight, token)

    def _leads(self, wanted: Wanted) -> bool:
        return self._flights.leads(wanted.call_id)

    def _until(self, state: _BatchState, wanted: Wanted) -> float:
        if state.until is None:
            state.until = time.monotonic() + wanted.patience()
        return state.until

    def _release(self, state: _BatchState) -> None:
        while state.claims:
            try:
                _, claim = state.claims.popitem()
            except KeyError:  # the last was taken just now
                return
            self._flights.land(claim.flight, None)
            if claim.token:
                self._places.release(claim.key, claim.token)
