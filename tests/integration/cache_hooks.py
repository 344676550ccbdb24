"""A hook that a worker under test loads after the cache: it writes down what was loaded and what was computed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from laya import BaseHook
from laya.phases import FORWARD


class Work(BaseHook):
    """Appends a line for each load, eviction and forward to the file that WORK names."""

    def _note(self, what: str, ctx: Any) -> None:
        with Path(os.environ["WORK"]).open("a") as lines:
            lines.write(f"{what} {ctx.model}\n")

    def on_load(self, ctx: Any) -> None:
        self._note("load", ctx)

    def on_evict(self, ctx: Any) -> None:
        self._note("evict", ctx)

    def on_predict_end(self, ctx: Any) -> None:
        if any(phase.name == FORWARD for phase in ctx.phases):
            self._note("forward", ctx)
