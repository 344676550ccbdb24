"""What tests of the skip cache look at: the calls that went past it, its entries, and whether two results are one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from hooks import SkipCache
from laya import BaseHook, PredictContext, Router
from laya.phases import FORWARD

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "checkpoints"
STATE = "Mir wurde zweimal Geld abgebucht, bitte erstatten Sie die zweite Zahlung."

LEASE_S = 60.0
"""Of most caches here: whoever waits for nothing takes far less, on however busy a machine."""

MakeCache = Callable[..., SkipCache]


class Seen(BaseHook):
    """Counts what happened to calls; goes after the cache."""

    def __init__(self) -> None:
        self.forwards = 0
        self.loads: list[str] = []
        self.evictions: list[str] = []
        self.lock = threading.Lock()

    def on_load(self, ctx: PredictContext) -> None:
        self.loads.append(str(ctx.model))

    def on_evict(self, ctx: PredictContext) -> None:
        self.evictions.append(str(ctx.model))

    def on_predict_end(self, ctx: PredictContext) -> None:
        with self.lock:
            self.forwards += any(phase.name == FORWARD for phase in ctx.phases)


def entries(client: redis.Redis, namespace: str) -> list[bytes]:
    return list(client.scan_iter(f"{namespace}.cache:*"))


def same(one: Any, other: Any) -> bool:
    """Byte for byte as JSON, and to the type of every key."""
    return json.dumps(one) == json.dumps(other) and repr(one) == repr(other)


def hits_after(cache: SkipCache, router: Router, questions: Any, **asked: Any) -> int:
    before = cache.stats().hits
    router.predict(STATE, questions, model="multilingual", **asked)
    assert cache.flush()
    return cache.stats().hits - before
