"""Lists of requests, calls that are let go together or halted, and what a cache must have given back in the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

from hooks import SkipCache
from laya import BaseHook, PredictContext


def listed(states: Sequence[str], questions: Any) -> list[dict[str, Any]]:
    return [{"state": state, "questions": questions, "model": "multilingual"} for state in states]


def leases(client: redis.Redis, namespace: str) -> list[bytes]:
    return list(client.scan_iter(f"{namespace}.cache-lease:*", count=1000))


def nothing_is_owed(client: redis.Redis, namespace: str, *caches: SkipCache) -> bool:
    assert all(cache.flush() for cache in caches)
    left = [(cache._flights._flights, dict(cache._flights._leading), len(cache._misses)) for cache in caches]
    return left == [({}, {}, 0)] * len(caches) and leases(client, namespace) == []


class Halts(BaseHook):
    """Stops the first call that has to compute something until it is let go; goes after the cache."""

    def __init__(self) -> None:
        self.first = threading.Lock()
        self.here, self.go = threading.Event(), threading.Event()

    def on_predict_start(self, ctx: PredictContext) -> None:
        if ctx.results is None and self.first.acquire(blocking=False):
            self.here.set()
            assert self.go.wait(60)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each of these returns, all of them let go together."""
    gate = threading.Barrier(len(calls))

    def let_go(call: Callable[[], Any]) -> Any:
        gate.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result(120) for one in [pool.submit(let_go, call) for call in calls]]
