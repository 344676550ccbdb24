"""How often each checkpoint was loaded: a figure that tells whether a worker holds what it is asked for.

Counts in this process only. Who is told is the caller's matter: a worker answers with it when it is asked.
"""

from __future__ import annotations

import threading
from collections import Counter

from laya import BaseHook, PredictContext


class LoadCount(BaseHook):
    """Counts the loads of each checkpoint; safe to use from many threads."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._lock = threading.Lock()
        self._loads: Counter[str] = Counter()

    def on_load(self, ctx: PredictContext) -> None:
        """One more load of `ctx.model`."""
        with self._lock:
            self._loads[str(ctx.model)] += 1

    def by_name(self) -> dict[str, int]:
        """Checkpoint to the number of its loads since the start; those never loaded are left out."""
        with self._lock:
            return dict(self._loads)
