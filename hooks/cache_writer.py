"""Writing behind: answers go to the server from a thread of its own, so that no prediction waits for a write.

The queue in front of it has an end, and what does not fit is not kept. How a write is done is the store's matter.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hooks import cache_value
from hooks.cache_key import CacheKey
from hooks.cache_stats import Counters
from hooks.cache_store import WRITE_SECONDS, CacheStore, Drop, Keep, LeftAlone, Release, StoreAway, Write

logger = logging.getLogger(__name__)

QUEUE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of answers that wait to be written at most."""

BUNDLE: Final = 64
"""Writes that go to the server together."""

IDLE_SECONDS: Final = 30.0
"""After so long without a write the thread ends; the next write starts another."""

EXIT_SECONDS: Final = 1.0
"""What a process that ends gives to the writes that still wait."""


@dataclass(frozen=True, slots=True)
class Job:
    """A text to keep under a key (None: nothing), then a lease to end ("": none), then someone to tell."""

    key: CacheKey
    text: bytes | None
    token: str = ""
    done: Callable[[], None] | None = None
    drop: bool = False  # remove what lies there instead

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return len(self.text or b"")


class Writer:
    """Writes jobs in order. Safe to use from many threads."""

    def __init__(self, store: CacheStore, counters: Counters, compress_above: int) -> None:
        """Write to this store; nothing runs before the first job."""
        self._store, self._counters, self._compress_above = store, counters, compress_above
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._bytes = 0
        self._at_work = False
        self._thread: threading.Thread | None = None
        this = weakref.ref(self)
        atexit.register(lambda: (writer := this()) and writer.flush(EXIT_SECONDS))

    def put(self, job: Job) -> None:
        """Write this soon; an answer for which the queue has no room is not written, only its lease is ended."""
        with self._changed:
            if job.size and self._bytes + job.size > QUEUE_BYTES:
                self._counters.add(unstored=1)
                job = Job(job.key, None, job.token, job.done)
            self._jobs.append(job)
            self._bytes += job.size
            if self._thread is None or not self._thread.is_alive():  # a fork has no threads but its own
                self._thread = threading.Thread(target=self._work, name="laya-cache-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until all jobs are done; whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._at_work, seconds)

    def drop(self) -> None:
        """Write nothing of what waits, and wait until what is being written is done: no connection is used then."""
        with self._changed:
            dropped, self._jobs, self._bytes = self._jobs, deque(), 0
            self._changed.wait_for(lambda: not self._at_work, 2 * WRITE_SECONDS)
        self._counters.add(unstored=sum(job.text is not None for job in dropped))
        for job in dropped:
            if job.done is not None:
                job.done()

    def _work(self) -> None:
        while bundle := self._next():
            try:
                self._write(bundle)
            except Exception:
                logger.exception("The skip cache's writer failed")
                self._counters.add(errors=1)
            finally:
                for job in bundle:
                    if job.done is not None:
                        job.done()
                with self._changed:
                    self._at_work = False
                    self._changed.notify_all()

    def _next(self) -> list[Job]:
        """The next jobs, in order; none after a while without."""
        until = time.monotonic() + IDLE_SECONDS
        with self._changed:
            while not self._jobs:
                if not self._changed.wait(until - time.monotonic()):
                    self._thread = None
                    return []
            bundle = [self._jobs.popleft() for _ in range(min(BUNDLE, len(self._jobs)))]
            self._bytes -= sum(job.size for job in bundle)
            self._at_work = True
            return bundle

    def _write(self, bundle: list[Job]) -> None:
        writes = [write for job in bundle if (write := self._write_of(job)) is not None]
        kept = [write for write in writes if isinstance(write, Keep)]
        if not writes:
            return
        try:
            done = self._store.write(writes)
        except StoreAway as away:
            self._counters.add(errors=not isinstance(away, LeftAlone), unstored=len(kept))
            return
        stored = [write for write, ok in zip(writes, done, strict=True) if ok and isinstance(write, Keep)]
        self._counters.add(
            stored=len(stored),
            bytes_written=sum(len(write.data) for write in stored),
            unstored=len(kept) - len(stored),
            errors=done.count(False),
        )

    def _write_of(self, job: Job) -> Write | None:
        if job.drop:
            return Drop(job.key)
        if job.text is not None:
            return Keep(job.key, cache_value.pack(job.text, self._compress_above), job.token)
        return Release(job.key, job.token) if job.token else None
