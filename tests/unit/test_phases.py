"""What the parts of a call took, as its context tells."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from laya import Agent, Router
from laya.batching import Batching
from laya.context import PredictContext
from laya.phases import Phase, phase, recording, tell
from laya.simulated import write_checkpoint

QUESTIONS = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
OTHER = {"angry": {"type": "noul", "instructions": "Is the writer angry?"}}


class Kept:
    """Keeps the context of every ended call."""

    def __init__(self) -> None:
        self.contexts: list[PredictContext] = []

    def on_predict_end(self, ctx: PredictContext) -> None:
        self.contexts.append(ctx)


@pytest.fixture
def simulated(tmp_path: Path) -> str:
    return str(write_checkpoint(tmp_path / "simulated", pass_ms=20, row_ms=0, device="phases"))


def names(ctx: PredictContext) -> list[str]:
    return [each.name for each in ctx.phases]


def test_a_call_in_its_own_thread_tells_tokenising_and_forward(simulated: str) -> None:
    kept = Kept()
    Agent(simulated, device="cpu", hooks=kept).predict("hello", QUESTIONS)
    (ctx,) = kept.contexts
    assert names(ctx) == ["tokenise", "forward"]
    assert ctx.phases[1].seconds >= 0.015
    assert ctx.elapsed_ms is not None
    assert sum(each.seconds for each in ctx.phases) * 1000 <= ctx.elapsed_ms


def test_shared_passes_tell_the_wait_for_the_device(simulated: str) -> None:
    kept = Kept()
    agent = Agent(simulated, device="cpu", hooks=kept, batching=Batching(max_rows=1))
    threads = [threading.Thread(target=agent.predict, args=(f"hello {n}", QUESTIONS)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [names(ctx) for ctx in kept.contexts] == [["tokenise", "batch_wait", "forward"]] * 3
    waits = sorted(ctx.phases[1].seconds for ctx in kept.contexts)
    assert waits[-1] >= 0.03, "the last of three waited for two passes of 20 ms"


def test_the_requests_of_a_batch_share_their_parts(simulated: str) -> None:
    kept = Kept()
    router = Router(models={"one": simulated}, default="one", device="cpu", hooks=kept, defer_load=True)
    router.predict_batch([{"state": "a", "questions": QUESTIONS}, {"state": "b", "questions": QUESTIONS}])
    assert [names(ctx) for ctx in kept.contexts] == [["load", "tokenise", "forward"]] * 2
    router.predict_batch([{"state": "a", "questions": QUESTIONS}, {"state": "b", "questions": OTHER}])
    assert [names(ctx) for ctx in kept.contexts[2:]] == [["tokenise", "forward"]] * 2


@pytest.mark.parametrize("batching", [None, Batching()])
def test_groups_of_a_batch_keep_their_parts_to_themselves(simulated: str, batching: Batching | None) -> None:
    kept = Kept()
    options: dict[str, Any] = {"batching": batching}
    router = Router(models={"one": simulated}, default="one", device="cpu", hooks=kept, agent_kwargs=options)
    router.predict_batch([{"state": "a", "questions": QUESTIONS}, {"state": "b", "questions": OTHER}])
    for ctx in kept.contexts:
        assert names(ctx).count("tokenise") == names(ctx).count("forward") == 1


def test_a_hit_has_no_parts(simulated: str) -> None:
    kept = Kept()
    agent = Agent(simulated, device="cpu", hooks=kept)
    agent.predict("hello", QUESTIONS, on_predict_start=lambda ctx: ctx.skip({"model": "m", "answers": {}}))
    assert kept.contexts[0].phases == []


def test_a_part_that_fails_is_told_to_every_recorder() -> None:
    outer: list[Phase] = []
    inner: list[Phase] = []
    with recording(outer):
        with recording(inner), pytest.raises(ValueError, match="no"), phase("cache"):
            raise ValueError("no")
        tell("later", 1.0, 3.0)
    tell("nobody listens", 1.0, 3.0)
    assert [each.name for each in outer] == ["cache", "later"]
    assert [each.name for each in inner] == ["cache"]
    assert outer[1].seconds == 2.0
