"""Counts forward passes of requests for `benchmarks.cache`: one byte in a file for each request that was computed."""

from __future__ import annotations

import os

from laya import BaseHook, PredictContext


class Computed(BaseHook):
    """Appends to the file that BENCH_COMPUTED names. A Router that defers its loads has no Agent for a hit."""

    def __init__(self) -> None:
        """Open the file."""
        self._file = os.open(os.environ["BENCH_COMPUTED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Count."""
        if ctx.agent is not None:
            os.write(self._file, b".")
