"""Hooks that a worker under test loads by dotted path: they write down what happens, or misbehave on demand."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

from laya import BaseHook


class Journal(BaseHook):
    """Appends a line for each event to the file that JOURNAL names."""

    def _note(self, line: str) -> None:
        with Path(os.environ["JOURNAL"]).open("a") as journal:
            journal.write(line + "\n")

    def on_load(self, ctx: Any) -> None:
        self._note(f"load {ctx.model}")

    def on_evict(self, ctx: Any) -> None:
        self._note(f"evict {ctx.model}")

    def on_predict_start(self, ctx: Any) -> None:
        self._note(f"start {ctx.states[0]}")

    def on_predict_end(self, ctx: Any) -> None:
        self._note(f"end {ctx.states[0]}")


class Trouble(BaseHook):
    """Does what the state says, such as `raise MemoryError` or `sleep 2`."""

    ERRORS: ClassVar = {
        error.__name__: error for error in (RuntimeError, ValueError, MemoryError, SystemExit, KeyboardInterrupt)
    }

    def on_predict_start(self, ctx: Any) -> None:
        verb, _, what = str(ctx.states[0]).partition(" ")
        if verb == "raise":
            raise self.ERRORS[what]("as asked")
        if verb == "sleep":
            time.sleep(float(what))

    def on_predict_end(self, ctx: Any) -> None:
        if ctx.results and str(ctx.states[0]) == "answer with an object":
            ctx.results[0]["note"] = object()


class Broken(BaseHook):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no such luck")

    def on_load(self, ctx: Any) -> None:
        """Make it a hook."""


class Redirect(BaseHook):
    """Sends a request to the checkpoint that its state names: `to other`."""

    def on_route(self, ctx: Any) -> None:
        verb, _, name = str(ctx.states[0]).partition(" ")
        if verb == "to":
            ctx.decision = {**ctx.decision, "model": name, "reason": "as asked"}


class Counting(BaseHook):
    """Has a `stats` of its own, which means something else than the skip cache's."""

    def stats(self) -> str:
        return "none of yours"
