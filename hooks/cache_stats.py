"""What a cache counts, and a snapshot of it that others may read: metrics, benchmarks, tests."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache did since it was made.

    A call counts once in `hits`, `misses` or `bypassed`; the rest is counted beside.

    Attributes:
        hits: calls answered from the cache.
        misses: calls whose answer was looked for and not there.
        bypassed: calls that the cache left alone: not to be stored, not expressible, answered by another hook, of a
            checkpoint without an identity, or asked while the cache was out of order.
        waits: calls that waited for another's answer to the same request; those of a list that waited count each.
        local_hits: of the hits, those answered from this process' memory.
        discarded: stored values that were of no use, and dropped.
        stored: answers written to the server.
        unstored: answers that were not: too large, not expressible, no room in the queue, refused, server away.
        errors: failed operations of the server, and of the cache itself.
        bytes_read, bytes_written: bytes of values from and to the server.
        state: of the server, as `hooks.cache_breaker` names it.
    """

    hits: int = 0
    misses: int = 0
    bypassed: int = 0
    waits: int = 0
    local_hits: int = 0
    discarded: int = 0
    stored: int = 0
    unstored: int = 0
    errors: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    state: str = "closed"


class Counters:
    """The counting behind a `CacheStats`. Safe to use from many threads."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, **counts: int) -> None:
        """Count these, by the names in `CacheStats`."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] = self._counts.get(name, 0) + count

    def snapshot(self, state: str) -> CacheStats:
        """All counts as they are now."""
        with self._lock:
            return CacheStats(**self._counts, state=state)
