"""Finding the answer to a request that stands alone: here, on the server, or by waiting for whoever computes it.

The order of the places to look in, and who waits for whom, is decided here. What a key is, what a text says, what
becomes of an answer that has to be computed, and the requests of a batch are the matter of others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from hooks import cache_value
from hooks.cache_flight import Flight, Flights
from hooks.cache_key import CacheKey
from hooks.cache_places import Found, Places, Wanted, pauses
from hooks.cache_stats import Counters
from hooks.cache_store import CacheStore, LeftAlone, StoreAway, Turn


class Search:
    """Looks for answers. Safe to use from many threads."""

    def __init__(self, places: Places, store: CacheStore, flights: Flights, counters: Counters, lease: float) -> None:
        """Look in these places; 0 seconds of `lease` means that nobody waits for anybody."""
        self._places, self._store = places, store
        self._flights, self._counters, self._lease = flights, counters, lease

    def one(self, wanted: Wanted) -> Found:
        """Search for the answer to one request, and wait for one who computes it as long as it has patience."""
        key = wanted.key
        result = self._places.from_memory(key)
        if result is not None:
            return Found(result)
        deadline = self._store.deadline()
        first = Found()
        if not self._lease or not self._flights.has(key.entry):
            # Without a word to others, so that a hit costs little more than a GET.
            first = self._places.from_server(wanted, deadline)
            if first.result is not None or not self._lease:
                return first
        patience = wanted.patience()
        # A leader may wait for a lease time for another worker, and compute for as long.
        seat = self._flights.join(key.entry, wanted.call_id, 2 * self._lease, may_wait=patience > 0)
        if seat.flight is None:
            return self._places.from_server(wanted, deadline) if first.asked and not first.useless else first
        if not seat.leads:
            return Found(self._wait_for(seat.flight, wanted, patience))
        if not first.asked or first.useless:
            return Found(flight=seat.flight, asked=first.asked)
        try:
            return self._lead(wanted, seat.flight, patience, deadline)
        except BaseException:
            self._flights.land(seat.flight, None)
            raise

    def several(self, keys: Sequence[CacheKey], questions: Any) -> list[dict[str, Any] | None]:
        """The answers about several states at once, None for those that are not there. Nobody waits.

        Raises:
            StoreAway: the server was not asked, or did not answer.
        """
        stored = self._places.stored([key.entry for key in keys])
        return [
            None if data is None else self._places.answer(key, data, questions)
            for key, data in zip(keys, stored, strict=True)
        ]

    def _wait_for(self, flight: Flight, wanted: Wanted, patience: float) -> dict[str, Any] | None:
        if not flight.done.is_set():
            self._counters.add(waits=1)
            flight.done.wait(patience)
        if flight.text is None:
            return None
        try:
            return cache_value.read(flight.text, wanted.key.digest, wanted.questions)
        except cache_value.Unusable:
            return None

    def _lead(self, wanted: Wanted, flight: Flight, patience: float, deadline: float) -> Found:
        token = secrets.token_hex(8)
        try:
            found = self._look(wanted.key, token, flight, patience, deadline)
        except StoreAway as away:
            self._places.count(away)
            # The lease may have been given all the same; ending it is no harm if it was not.
            return Found(flight=flight, token="" if isinstance(away, LeftAlone) else token, asked=False)
        if isinstance(found, Turn):
            return Found(flight=flight, token=token if found is Turn.LEASED else "")
        result = self._places.answer(wanted.key, found, wanted.questions)
        if result is None:
            return Found(flight=flight)
        self._flights.land(flight, cache_value.unpack(found))
        self._flights.end(flight)
        return Found(result)

    def _look(self, key: CacheKey, token: str, flight: Flight, patience: float, deadline: float) -> bytes | Turn:
        until = time.monotonic() + patience
        pause = pauses()
        waits = False
        while True:
            (found,) = self._store.look([key], token, None if waits else deadline)
            left = until - time.monotonic()
            if found is not Turn.HELD or left <= 0 or self._flights.leads_more_than(flight):
                return found
            if not waits:
                waits = True
                self._counters.add(waits=1)
            time.sleep(min(next(pause), left))
