"""What the cache's writer leaves undone when its cache is closed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from hooks.cache_key import CacheKey
from hooks.cache_stats import Counters
from hooks.cache_store import Write
from hooks.cache_writer import BUNDLE, Job, Writer
from tests.waiting import wait_until


class SlowStore:
    """Takes as long for a bundle as the test likes."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.bundles: list[int] = []

    def write(self, writes: Sequence[Write]) -> list[bool]:
        self.begun.set()
        assert self.go_on.wait(20)
        self.bundles.append(len(writes))
        return [True] * len(writes)


def test_what_waits_is_dropped_and_what_is_being_written_is_waited_for() -> None:
    store, counters, ended = SlowStore(), Counters(), []
    writer = Writer(store, counters, 1_000_000)  # type: ignore[arg-type]  # all that it asks of a store

    def put(number: int) -> None:
        key = CacheKey("", f"entry {number}", f"lease {number}")
        writer.put(Job(key, b"text", done=lambda: ended.append(number)))

    put(0)
    assert store.begun.wait(20)
    for number in range(1, BUNDLE):
        put(number)
    dropping: Any = threading.Thread(target=writer.drop)
    dropping.start()
    wait_until(lambda: not writer._jobs, what="the drop")
    store.go_on.set()
    dropping.join(20)
    assert not dropping.is_alive()
    assert store.bundles == [1]
    assert sorted(ended) == list(range(BUNDLE))  # whoever waits for a flight hears of its end
    assert (counters.snapshot("closed").stored, counters.snapshot("closed").unstored) == (1, BUNDLE - 1)
    put(BUNDLE)  # it is of use again
    assert writer.flush(20)
    assert store.bundles == [1, 1]
