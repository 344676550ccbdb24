"""The hooks that the project ships, on a real Router."""

from __future__ import annotations

from pathlib import Path

from hooks import LoadCount
from laya import Router

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "checkpoints"


def test_loads_are_counted_by_checkpoint_repeats_included() -> None:
    count = LoadCount()
    names = ("multilingual", "typed-decisions")
    router = Router(models={name: str(GOLDEN / name) for name in names}, device="cpu", max_loaded=1, hooks=count)
    for name in ("multilingual", "multilingual", "typed-decisions", "multilingual"):
        router.load(name)
    assert count.by_name() == {"multilingual": 2, "typed-decisions": 1}
