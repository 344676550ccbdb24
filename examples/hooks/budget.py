"""Token budgets: how much of a state is read, capped for everybody, whatever a call asks for.

A row costs what it has in tokens, so a cap bounds what the longest states cost and leaves the short ones as they are.

    python examples/hooks/budget.py [CHECKPOINT]
"""

import sys
from pathlib import Path

from laya import Agent, BaseHook, PredictContext

TINY = Path(__file__).parents[2] / "tests/data/golden/checkpoints/multilingual"


class Budget(BaseHook):
    """Lets no row be longer than `max_len` tokens; a call that asks for less gets less."""

    def __init__(self, max_len: int) -> None:
        """Cap rows at `max_len` tokens."""
        self.max_len = max_len

    def on_predict_start(self, ctx: PredictContext) -> None:
        """Set the budget of this call; under a Router it is the budget of this request only."""
        ctx.max_len = self.max_len if ctx.max_len is None else min(ctx.max_len, self.max_len)


def main(checkpoint: str) -> None:
    """Show what is read of a long state with and without the cap."""
    agent = Agent(checkpoint, device="cpu")
    questions = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
    state = "The page crashes when I log in. " * 60
    for hooks in (None, Budget(128)):
        usage = agent.predict(state, questions, hooks=hooks)["usage"]
        print(f"{usage['input_tokens']} tokens, {usage['state_tokens_dropped']} of the state's dropped")


if __name__ == "__main__":
    main(*sys.argv[1:] or [str(TINY)])
