"""Tells whoever stores a task's result which checkpoint answered each request of it, and what a hook brought.

A cache hit is such a hook's. How the notes come to be stored is `producer.served`'s matter.
"""

from __future__ import annotations

from laya import BaseHook, PredictContext
from producer.served import notes


class Noted(BaseHook):
    """Adds each request that ended to the notes of the task that it came with."""

    def on_predict_end(self, ctx: PredictContext) -> None:
        """One more request of the task has ended."""
        taken = notes()
        if taken is not None:
            taken.add(ctx.model, hit=ctx.skipped)
