"""Workers that stand still: a hook that sleeps, a forward pass that never returns, an event loop that takes nothing.

Being imported brings the control commands, and the pass: simulated checkpoints never finish one that has a row of the
state `a stuck pass`.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from celery.worker.control import control_command

from laya import BaseHook
from laya.simulated import SimulatedKind


@control_command(name="block", args=[("path", str)])
def block(state: Any, path: str) -> dict[str, str]:
    """Put a file there, and stand still until somebody takes it away."""
    Path(path).touch()
    while Path(path).exists():
        time.sleep(0.02)
    return {"ok": "blocked"}


@control_command(name="take_nothing")
def take_nothing(state: Any) -> dict[str, str]:
    """From now on the consumer listens to the doorbells, and never takes what they ring for; all the rest goes on."""
    state.consumer.task_consumer.channel.taker._step = lambda queues: "wait"
    return {"ok": "takes nothing"}


def _stick() -> None:
    encode, launch = SimulatedKind.encode, SimulatedKind.launch
    stuck: set[Any] = set()

    def encode_and_mark(self: Any, state: Any, *args: Any) -> Any:
        encoded = encode(self, state, *args)
        if state == "a stuck pass":
            stuck.update(row.payload for row in encoded.rows)
        return encoded

    def launch_or_stick(self: Any, rows: Any) -> Any:
        scores = launch(self, rows)
        return threading.Event().wait if stuck & {row.payload for row in rows} else scores

    SimulatedKind.encode, SimulatedKind.launch = encode_and_mark, launch_or_stick  # type: ignore[method-assign]


_stick()


class Stubborn(BaseHook):
    """Sleeps when the state says so."""

    def on_predict_start(self, ctx: Any) -> None:
        verb, _, what = str(ctx.states[0]).partition(" ")
        if verb == "sleep":
            time.sleep(float(what))
