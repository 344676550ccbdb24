"""Hooks that repeat a state in their errors, as careless code does, in each way in which an error can travel."""

from __future__ import annotations

import time
from typing import Any

from laya import BaseHook


class Loud(BaseHook):
    """Fails as the state's first word says, with the whole state in the text."""

    def on_predict_start(self, ctx: Any) -> None:
        state = str(ctx.states[0])
        verb = state.partition(" ")[0]
        if verb == "start":
            try:
                raise KeyError(state)
            except KeyError as error:
                raise ValueError(f"bad {state}") from error
        if verb == "group":
            raise ExceptionGroup(f"many {state}", [ValueError(state), TypeError(state)])
        if verb == "memory":
            raise MemoryError(state)
        if verb == "exit":
            raise SystemExit(state)
        if verb == "sleep":
            time.sleep(1)

    def on_predict_end(self, ctx: Any) -> None:
        if str(ctx.states[0]).startswith("end") and ctx.error is None:
            raise RuntimeError(f"could not file {ctx.states[0]}")

    def on_error(self, ctx: Any) -> None:
        raise OSError(f"could not report {ctx.states[0]}")


class Lenient(BaseHook):
    """Fails every time, and lets the call go on."""

    raise_errors = False

    def on_predict_start(self, ctx: Any) -> None:
        raise ValueError(f"telemetry: {ctx.states[0]}")
