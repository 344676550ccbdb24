"""Tracing: what runs inside a call knows the call, because a context variable is set at its start and reset at its end.

Both methods are plain functions: a coroutine, and a hook with a time limit, run in a copy of the caller's context and
could change only that copy.

    python examples/hooks/trace.py [CHECKPOINT]
"""

import sys
from contextvars import ContextVar, Token
from pathlib import Path

from laya import Agent, BaseHook, PredictContext

TINY = Path(__file__).parents[2] / "tests/data/golden/checkpoints/multilingual"

path: ContextVar[tuple[str, ...]] = ContextVar("path", default=())
"""The calls that are open here, the outermost first."""


class Trace(BaseHook):
    """Opens one entry of `path` a call and closes it again, also when calls are nested or come in a batch."""

    def __init__(self, name: str) -> None:
        """Call each entry `name`, a colon and the start of the call's `run_id`."""
        self.name = name
        self._open: dict[str, Token[tuple[str, ...]]] = {}

    def on_predict_start(self, ctx: PredictContext) -> None:
        """Open an entry."""
        self._open[ctx.run_id] = path.set((*path.get(), f"{self.name}:{ctx.run_id[:4]}"))

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Close it. A call whose start was never reached, because an earlier hook refused it, has none."""
        token = self._open.pop(ctx.run_id, None)
        if token is not None:
            path.reset(token)


def main(checkpoint: str) -> None:
    """Show the path inside a call, and after it."""
    agent = Agent(checkpoint, device="cpu", hooks=Trace("agent"))
    questions = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
    agent.predict("Hello", questions, on_predict_start=lambda _: print("inside:", path.get()))
    print("after:", path.get())


if __name__ == "__main__":
    main(*sys.argv[1:] or [str(TINY)])
