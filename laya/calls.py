"""A call of an Agent between its start hooks and its end, so that several can be under way in one thread.

The Agent begins a call: hooks, tokenising, rows handed to the shared passes. Whoever began it finishes it, or abandons
it when another call failed that it belongs with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from laya.context import PredictContext
from laya.hooks import HookRun, nested_calls_fire_defaults
from laya.lifecycle import fail, measure
from laya.phases import recording


@dataclass(frozen=True, slots=True)
class Inference:
    """What is left of a call: `results` waits for its answers, `drop` gives them up and lets go of their memory."""

    results: Callable[[], list[dict[str, Any]]]
    drop: Callable[[], None] = lambda: None


class BatchCall:
    """One begun call. Exactly one of `finish` and `abandon` ends it, in the thread that began it."""

    def __init__(self, ctx: PredictContext, run: HookRun, min_confidence: Any, left: Inference | None) -> None:
        """Stand for a call whose start hooks have run; nothing is `left` to infer where they brought its results."""
        self._ctx, self._run, self._min_confidence, self._left = ctx, run, min_confidence, left

    def finish(self) -> list[dict[str, Any]]:
        """Wait for the results, measure and gate them, fire `on_predict_end`, and return them.

        Raises:
            BaseException: what the call failed with, after `on_error` and `on_predict_end`.
        """
        ctx = self._ctx
        with nested_calls_fire_defaults():
            try:
                if self._left is not None:
                    with recording(ctx.phases):
                        ctx.deliver(self._left.results())
                measure(ctx, self._min_confidence)
            except BaseException as error:
                fail(ctx, self._run, error, self._min_confidence)
                raise
            self._run.fire_each("on_predict_end", ctx)
        return ctx.results  # type: ignore[return-value]  # measured, so it is there

    def abandon(self, error: BaseException) -> None:
        """End the call with the failure of another: `on_error`, `on_predict_end`. Never raises."""
        if self._left is not None:
            self._left.drop()
        with nested_calls_fire_defaults():
            fail(self._ctx, self._run, error, self._min_confidence)
