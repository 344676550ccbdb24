"""The places where an answer may lie, this process' memory and the server, and what was found there.

In which order they are looked into, and who waits for whom, is decided by those who search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hooks import cache_value
from hooks.cache_flight import Flight
from hooks.cache_key import CacheKey
from hooks.cache_local import LocalLevel
from hooks.cache_stats import Counters
from hooks.cache_store import CacheStore, LeftAlone, StoreAway
from hooks.cache_writer import Job, Writer

FIRST_POLL: Final = 0.002
"""Seconds before the server is asked again for an answer that another computes."""

LAST_POLL: Final = 0.02
"""It is asked less and less often, down to this."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request whose answer is searched.

    Attributes:
        key: where its answer lies.
        questions: what the answer must be an answer to.
        call_id: the outermost call that it belongs to; None belongs to none that could be known.
        patience: tells how many seconds it may wait for another that computes the answer; asked at most once.
    """

    key: CacheKey
    questions: Any
    call_id: str | None
    patience: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search. Whoever gets a flight or a token ends both, with the answer or without.

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


class Places:
    """Looks without waiting for another request. Safe to use from many threads."""

    def __init__(self, store: CacheStore, writer: Writer, local: LocalLevel, counters: Counters) -> None:
        """Look into this store and this memory; the writer drops what answers nothing."""
        self._store, self._writer, self._local, self._counters = store, writer, local, counters

    def from_memory(self, key: CacheKey) -> dict[str, Any] | None:
        """The answer, if this process' memory has it."""
        result = self._local.get(key.entry)
        if result is not None:
            self._counters.add(local_hits=1)
        return result

    def is_in_memory(self, key: CacheKey) -> bool:
        """Whether this process' memory has the answer."""
        return self._local.has(key.entry)

    def from_server(self, wanted: Wanted, deadline: float | None = None) -> Found:
        """The answer to one request, if the server has it."""
        try:
            (data,) = self.stored([wanted.key.entry], deadline)
        except StoreAway:
            return Found(asked=False)
        result = None if data is None else self.answer(wanted.key, data, wanted.questions)
        return Found(result, useless=data is not None and result is None)

    def stored(self, entries: Sequence[str], deadline: float | None = None) -> list[bytes | None]:
        """The data that the server has under each of these names.

        Raises:
            StoreAway: it was not asked, or did not answer.
        """
        try:
            return self._store.fetch(entries, deadline)
        except StoreAway as away:
            self.count(away)
            raise

    def answer(self, key: CacheKey, data: bytes, questions: Any) -> dict[str, Any] | None:
        """What stored data answer; data that answer nothing are dropped."""
        self._counters.add(bytes_read=len(data))
        try:
            result = cache_value.read(cache_value.unpack(data), key.digest, questions)
        except cache_value.Unusable:
            self._counters.add(discarded=1)
            self._writer.put(Job(key, None, drop=True))
            return None
        self._local.put(key.entry, result)
        return result

    def release(self, key: CacheKey, token: str) -> None:
        """End a lease soon, if it is held by this token."""
        self._writer.put(Job(key, None, token))

    def count(self, away: StoreAway) -> None:
        """Count a failure of the server; that it is left alone is none."""
        if not isinstance(away, LeftAlone):
            self._counters.add(errors=1)


def pauses() -> Iterator[float]:
    """Seconds to sleep between two questions about what another computes, without end."""
    pause = FIRST_POLL
    while True:
        yield pause
        pause = min(2 * pause, LAST_POLL)
