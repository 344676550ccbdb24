"""How one call ends: the figures and the gate of one that has results, and the last events of one that failed.

Agent and Router bring a call to its end in exactly the same way; this is that way. When a call starts, and what lies
between its start and its end, is theirs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from laya.confidence import aggregate_usage, apply_confidence_gate
from laya.context import PredictContext
from laya.hooks import HookRun


def measure(ctx: PredictContext, min_confidence: Any) -> None:
    """Write how long the call took and, where it has results, what they used; let the gate judge their answers."""
    ctx.elapsed_ms = (time.perf_counter() - ctx.started_at) * 1000
    # An empty batch has results ([]) and so a usage of zeros; only a call that produced nothing has None.
    if ctx.results is not None:
        ctx.usage = aggregate_usage(ctx.results)
        apply_confidence_gate(ctx.results, min_confidence)


def fail(ctx: PredictContext, run: HookRun, error: BaseException, min_confidence: Any) -> None:
    """End a call that failed: `ctx.error`, `on_error`, figures, `on_predict_end`. Never raises; the caller re-raises.

    Results that stood before the failure (a hit in a group that failed later) are measured and gated as usual.
    """
    ctx.error = error
    run.fire_after_failure("on_error", ctx, error)
    try:
        measure(ctx, min_confidence)
    except BaseException as second:  # noqa: BLE001  # the first failure is the one that the caller must see
        error.add_note(f"then measuring the results failed: {second!r}")
    run.fire_after_failure("on_predict_end", ctx, error)


def end_in_reverse(contexts: Sequence[PredictContext], run: HookRun) -> None:
    """End every request of a batch that succeeded, also when the end hook of another raises; then raise the first."""
    first: BaseException | None = None
    for ctx in reversed(contexts):
        try:
            run.fire_each("on_predict_end", ctx)
        except BaseException as error:  # noqa: BLE001  # raised below, after every request has ended
            first = first or error
    if first is not None:
        raise first
