"""A control command that keeps a worker's event loop busy: what a blocked consumer looks like."""

from __future__ import annotations

import time
from typing import Any

from celery.worker.control import control_command

from laya import BaseHook


@control_command(name="block", args=[("seconds", float)])
def block(state: Any, seconds: float) -> dict[str, str]:
    time.sleep(seconds)
    return {"ok": "blocked"}


class Stubborn(BaseHook):
    """Sleeps when the state says so; being imported brings the command."""

    def on_predict_start(self, ctx: Any) -> None:
        verb, _, what = str(ctx.states[0]).partition(" ")
        if verb == "sleep":
            time.sleep(float(what))
