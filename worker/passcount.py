"""What a worker's forward passes came to since its start: `celery -A worker inspect passes`.

Only counts; `laya.batching` tells of each pass, and metrics have figures of their own. Who asks is answered by
`worker.inspection`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from laya.batching import PassReport


@dataclass(frozen=True, slots=True)
class Passes:
    """The figures at one moment.

    Attributes:
        passes: those that came back with scores.
        rows, tokens, padded: what was in them; `padded` counts tokens as computed, padding included.
        seconds: how long they took together.
        failed: passes that failed, and were split or ended a request; those for want of memory included.
        out_of_memory: passes that failed for want of memory.
        budget: padded tokens that a pass may hold, as of the latest one: less than LAYA_MAX_BATCH_TOKENS for some time
            after memory ran out; 0 before the first.
    """

    passes: int = 0
    rows: int = 0
    tokens: int = 0
    padded: int = 0
    seconds: float = 0.0
    failed: int = 0
    out_of_memory: int = 0
    budget: int = 0


class PassCount:
    """Counts the passes of one process. Safe to use from many threads."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._lock = threading.Lock()
        self._passes = Passes()

    def observe(self, report: PassReport) -> None:
        """Count one pass."""
        with self._lock:
            before = self._passes
            if report.outcome == "done":
                self._passes = replace(
                    before,
                    passes=before.passes + 1,
                    rows=before.rows + report.rows,
                    tokens=before.tokens + report.tokens,
                    padded=before.padded + report.padded,
                    seconds=before.seconds + report.seconds,
                    budget=report.budget,
                )
            else:
                self._passes = replace(
                    before,
                    failed=before.failed + 1,
                    out_of_memory=before.out_of_memory + report.out_of_memory,
                    budget=report.budget,
                )

    def snapshot(self) -> Passes:
        """The figures now."""
        with self._lock:
            return self._passes
