"""Finding the answer to a request: in this process, on the server, or by waiting for whoever computes it.

The order of the places to look in, and who waits for whom, is decided here. What a key is, what a text says, and what
becomes of an answer that has to be computed are the matter of others.
"""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hooks import cache_value
from hooks.cache_flight import Flight, Flights
from hooks.cache_key import CacheKey
from hooks.cache_local import LocalLevel
from hooks.cache_stats import Counters
from hooks.cache_store import CacheStore, LeftAlone, StoreAway, Turn
from hooks.cache_writer import Job, Writer
from laya.context import Batch

FIRST_POLL: Final = 0.002
"""Seconds before the server is asked again for an answer that another worker computes."""

LAST_POLL: Final = 0.02
"""It is asked less and less often, down to this."""

Read = Callable[[bytes], dict[str, Any] | None]
"""What a text answers to the request at hand, None if nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search.

    Attributes:
        result: the answer, None where it has to be computed.
        flight: where others of this process wait for the caller to compute it.
        token: of the lease for which other workers wait; "" without one.
        asked: whether it is known that the answer is nowhere: the server was not out of order.
        useless: whether there was something that answers nothing; it is being dropped, and not to be found again.
    """

    result: dict[str, Any] | None = None
    flight: Flight | None = None
    token: str = ""
    asked: bool = True
    useless: bool = False


class Search:
    """Looks for answers. Safe to use from many threads."""

    def __init__(
        self,
        store: CacheStore,
        writer: Writer,
        local: LocalLevel,
        flights: Flights,
        counters: Counters,
        lease: float,
    ) -> None:
        """Look in these places; 0 seconds of `lease` means that nobody waits for anybody."""
        self._store, self._writer, self._local = store, writer, local
        self._flights, self._counters, self._lease = flights, counters, lease
        self._batches: weakref.WeakKeyDictionary[Batch, Mapping[str, bytes | None]] = weakref.WeakKeyDictionary()
        self._batches_lock = threading.Lock()

    def one(self, key: CacheKey, read: Read, call_id: str | None, patience_of: Callable[[], float]) -> Found:
        """Search for the answer to one request, and wait at most `patience_of()` seconds for one who computes it.

        Whoever gets a flight or a token ends both, with the answer or without.
        """
        result = self._here(key, read)
        if result is not None:
            return Found(result)
        deadline = self._store.deadline()
        first = Found()
        if not self._lease or not self._flights.has(key.entry):
            # Without a word to others, so that a hit costs little more than a GET.
            first = self._fetched(key, read, deadline)
            if first.result is not None or not self._lease:
                return first
        patience = patience_of()
        # A leader may wait for a lease time for another worker, and compute for as long.
        seat = self._flights.join(key.entry, call_id, 2 * self._lease, may_wait=patience > 0)
        if seat.flight is None:
            return self._fetched(key, read, deadline) if first.asked and not first.useless else first
        if not seat.leads:
            return Found(self._wait_for(seat.flight, read, patience))
        if not first.asked or first.useless:
            return Found(flight=seat.flight, asked=first.asked)
        try:
            return self._lead(key, read, seat.flight, patience, deadline)
        except BaseException:
            self._flights.land(seat.flight, None)
            raise

    def several(self, keys: Sequence[CacheKey], reads: Sequence[Read]) -> list[dict[str, Any] | None]:
        """The answers to several requests at once, None for those that are not there. Nobody waits.

        Raises:
            StoreAway: the server was not asked, or did not answer.
        """
        data = self._fetch([key.entry for key in keys])
        return [self._read(key, one, read) for key, one, read in zip(keys, data, reads, strict=True)]

    def in_batch(self, batch: Batch, keys: Callable[[], Sequence[CacheKey]], key: CacheKey, read: Read) -> Found:
        """The answer to one request of a batch. Those of all its `keys` are fetched together, the first time.

        A batch waits for nobody and nobody for it: its requests start before any of them is computed.
        """
        result = self._here(key, read)
        if result is not None:
            return Found(result)
        with self._batches_lock:
            fetched = self._batches.get(batch)
        if fetched is None:
            entries = list(dict.fromkeys(each.entry for each in keys()))
            try:
                fetched = dict(zip(entries, self._fetch(entries), strict=True))
            except StoreAway:
                fetched = {}
            with self._batches_lock:
                self._batches[batch] = fetched
        if not fetched:
            return Found(asked=False)
        if key.entry not in fetched:  # a hook rewrote the request
            return self._fetched(key, read)
        return Found(self._read(key, fetched[key.entry], read))

    def _here(self, key: CacheKey, read: Read) -> dict[str, Any] | None:
        text = self._local.get(key.entry)
        result = None if text is None else read(text)
        if result is not None:
            self._counters.add(local_hits=1)
        return result

    def _fetched(self, key: CacheKey, read: Read, deadline: float | None = None) -> Found:
        try:
            (data,) = self._fetch([key.entry], deadline)
        except StoreAway:
            return Found(asked=False)
        result = self._read(key, data, read)
        return Found(result, useless=data is not None and result is None)

    def _fetch(self, entries: Sequence[str], deadline: float | None = None) -> list[bytes | None]:
        try:
            return self._store.fetch(entries, deadline)
        except StoreAway as away:
            self._count(away)
            raise

    def _wait_for(self, flight: Flight, read: Read, patience: float) -> dict[str, Any] | None:
        if not flight.done.is_set():
            self._counters.add(waits=1)
            flight.done.wait(patience)
        return None if flight.text is None else read(flight.text)

    def _lead(self, key: CacheKey, read: Read, flight: Flight, patience: float, deadline: float) -> Found:
        token = secrets.token_hex(8)
        try:
            found = self._look(key, token, flight, patience, deadline)
        except StoreAway as away:
            self._count(away)
            return Found(flight=flight, asked=False)
        if isinstance(found, Turn):
            return Found(flight=flight, token=token if found is Turn.LEASED else "")
        result = self._read(key, found, read)
        if result is None:
            return Found(flight=flight)
        self._flights.land(flight, cache_value.unpack(found))
        self._flights.end(flight)
        return Found(result)

    def _look(self, key: CacheKey, token: str, flight: Flight, patience: float, deadline: float) -> bytes | Turn:
        until = time.monotonic() + patience
        pause = FIRST_POLL
        waits = False
        while True:
            found = self._store.look(key, token, None if waits else deadline)
            left = until - time.monotonic()
            if found is not Turn.HELD or left <= 0 or self._flights.leads_more_than(flight):
                return found
            if not waits:
                waits = True
                self._counters.add(waits=1)
            time.sleep(min(pause, left))
            pause = min(2 * pause, LAST_POLL)

    def _read(self, key: CacheKey, data: bytes | None, read: Read) -> dict[str, Any] | None:
        """What stored data answer; data that answer nothing are dropped."""
        if data is None:
            return None
        self._counters.add(bytes_read=len(data))
        try:
            text = cache_value.unpack(data)
        except cache_value.Unusable:
            text = None
        result = None if text is None else read(text)
        if text is None or result is None:
            self._counters.add(discarded=1)
            self._writer.put(Job(key, None, drop=True))
            return None
        self._local.put(key.entry, text)
        return result

    def _count(self, away: StoreAway) -> None:
        if not isinstance(away, LeftAlone):
            self._counters.add(errors=1)
