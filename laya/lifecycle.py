"""How one call ends: complete or failed, with its figures, its gate and its last hooks.

Agent and Router bring a call to its end in exactly the same way; this is that way. When a call starts, and what lies
between its start and its end, is theirs.
"""

from __future__ import annotations

import time
from typing import Any

from laya.confidence import aggregate_usage, apply_confidence_gate
from laya.context import PredictContext
from laya.hooks import HookRun


def complete(ctx: PredictContext, run: HookRun, min_confidence: Any) -> None:
    """End a call that produced results: figures, gate, then `on_predict_end` of every hook.

    Raises:
        BaseException: the first failure of an end hook, after all of them have run.
    """
    try:
        _measure(ctx, min_confidence)
    except BaseException as error:
        fail(ctx, run, error, min_confidence)
        raise
    run.fire_each("on_predict_end", ctx)


def fail(ctx: PredictContext, run: HookRun, error: BaseException, min_confidence: Any) -> None:
    """End a call that failed: `ctx.error`, `on_error`, figures, `on_predict_end`. Never raises; the caller re-raises.

    Results that stood before the failure (a hit in a group that failed later) are measured and gated as usual.
    """
    ctx.error = error
    run.fire_after_failure("on_error", ctx, error)
    try:
        _measure(ctx, min_confidence)
    except BaseException as second:  # noqa: BLE001  # the first failure is the one that the caller must see
        error.add_note(f"then measuring the results failed: {second!r}")
    run.fire_after_failure("on_predict_end", ctx, error)


def _measure(ctx: PredictContext, min_confidence: Any) -> None:
    ctx.elapsed_ms = (time.perf_counter() - ctx.started_at) * 1000
    # An empty batch has results ([]) and so a usage of zeros; only a call that produced nothing has None.
    if ctx.results is not None:
        ctx.usage = aggregate_usage(ctx.results)
        apply_confidence_gate(ctx.results, min_confidence)
