"""An audit log: one line of JSON a call, also for calls that were skipped, empty or failed; never a word of the state.

python examples/hooks/audit.py [CHECKPOINT]
"""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laya import Agent, BaseHook, PredictContext

TINY = Path(__file__).parents[2] / "tests/data/golden/checkpoints/multilingual"


class Audit(BaseHook):
    """Writes what became of each call. A log that cannot be written warns; it does not take the answer away."""

    raise_errors = False  # True where an answer that was not logged must not leave

    def __init__(self, write: Callable[[str], Any] = sys.stdout.write) -> None:
        """Hand each line, its newline included, to `write`, one at a time."""
        self._write = write
        self._lock = threading.Lock()

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Log the call; every started call comes here exactly once."""
        line = json.dumps(
            {
                "run_id": ctx.run_id,
                "model": ctx.model,
                "outcome": outcome(ctx),
                "states": len(ctx.results or []),
                "usage": ctx.usage,
                "elapsed_ms": None if ctx.elapsed_ms is None else round(ctx.elapsed_ms, 1),
            }
        )
        with self._lock:
            self._write(line + "\n")


def outcome(ctx: PredictContext) -> str:
    """`answered`, `empty`, or the name of the error's class."""
    if ctx.error is not None:
        return type(ctx.error).__name__
    # A usage of None would say that nothing was produced; an empty batch has produced its empty list.
    return "answered" if ctx.results else "empty"


def main(checkpoint: str) -> None:
    """Log a call that is answered, one without states, and one that is refused."""
    agent = Agent(checkpoint, device="cpu", hooks=Audit())
    questions = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
    agent.predict("The page crashes when I log in.", questions)
    agent.predict_batch([], questions)
    try:
        agent.predict("Hello", {"urgent": {"type": "maybe"}})
    except ValueError as error:
        print(error)


if __name__ == "__main__":
    main(*sys.argv[1:] or [str(TINY)])
