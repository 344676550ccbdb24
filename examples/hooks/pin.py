"""Pinning: requests of some customers go to the checkpoint that was agreed with them, before another one is loaded.

python examples/hooks/pin.py [DIRECTORY with the checkpoints english, multilingual and typed-decisions]
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from laya import BaseHook, PredictContext, Router

TINY = Path(__file__).parents[2] / "tests/data/golden/checkpoints"


class Pin(BaseHook):
    """Sends a state whose `field` has one of the given values to the checkpoint named for it."""

    raise_errors = True  # better no answer than one from the wrong checkpoint

    def __init__(self, field: str, checkpoints: Mapping[str, str]) -> None:
        """Map values of `field` to names of checkpoints; aliases will do."""
        self.field = field
        self.checkpoints = checkpoints

    def on_route(self, ctx: PredictContext) -> None:
        """Replace the decision where one was agreed."""
        state = ctx.states[0]
        value = state.get(self.field) if isinstance(state, Mapping) else None
        agreed = self.checkpoints.get(value) if isinstance(value, str) else None
        if agreed is not None:
            ctx.decision = {**(ctx.decision or {}), "model": agreed, "reason": f"Pinned: {self.field}={value!r}."}


def main(directory: str) -> None:
    """Route two customers, and load only what they need."""
    names = ("multilingual", "typed-decisions")
    router = Router(models={name: str(Path(directory) / name) for name in names}, device="cpu")
    router.add_hook(Pin("customer", {"acme": "typed"}))
    questions = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
    for customer in ("acme", "somebody"):
        state = {"customer": customer, "text": "Die Seite stürzt beim Anmelden ab."}
        routing = router.predict(state, questions)["routing"]
        print(f"{customer}: {routing['model']}, loaded: {router.loaded}")


if __name__ == "__main__":
    main(*sys.argv[1:] or [str(TINY)])
