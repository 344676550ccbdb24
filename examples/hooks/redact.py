"""Redaction: mail addresses and long numbers never reach a checkpoint, and neither the hooks that come after this one.

A call that cannot be redacted must not go on, so this hook fails closed whatever `hooks_raise` says.

    python examples/hooks/redact.py [CHECKPOINT]
"""

import re
import sys
from pathlib import Path
from typing import Any

from laya import Agent, BaseHook, PredictContext

TINY = Path(__file__).parents[2] / "tests/data/golden/checkpoints/multilingual"

MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
NUMBER = re.compile(r"\d(?:[ -]?\d){7,}")  # eight digits and more: cards, accounts, telephones


class Redact(BaseHook):
    """Replaces what looks like a mail address or a long number in every value of every state."""

    raise_errors = True

    def on_predict_start(self, ctx: PredictContext) -> None:
        """Assign redacted copies; the caller's own objects stay as they are."""
        if isinstance(ctx.states, list | tuple):  # what is not, the call refuses
            ctx.states = [redacted(state) for state in ctx.states]


def redacted(value: Any) -> Any:
    """A copy of a state with its texts and numbers redacted, its keys kept."""
    if isinstance(value, int | float) and NUMBER.search(str(value)):
        return "[number]"
    if isinstance(value, str):
        return NUMBER.sub("[number]", MAIL.sub("[mail]", value))
    if isinstance(value, dict):
        return {key: redacted(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(entry) for entry in value]
    return value


def main(checkpoint: str) -> None:
    """Show what a later hook, and so the checkpoint, sees of a state."""
    agent = Agent(checkpoint, device="cpu", hooks=Redact())
    questions = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
    agent.predict(
        "Call me at 0171 555 00 12 or write to jo@example.org.",
        questions,
        on_predict_start=lambda ctx: print(ctx.states[0]),
    )


if __name__ == "__main__":
    main(*sys.argv[1:] or [str(TINY)])
