"""Calls of Agents and batches of Routers in shared passes: each gets its own answers, hooks and errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import laya
from laya.batching import Batching, PassReport
from laya.simulated import write_checkpoint


def test_64_threads_with_questions_of_their_own_get_the_answers_of_a_call_alone(tmp_path: Path) -> None:
    path = str(write_checkpoint(tmp_path / "simulated", pass_ms=1, row_ms=0, device=str(tmp_path)))
    reports: list[PassReport] = []
    shared = laya.Agent(path, batching=Batching(observe=reports.append))
    alone = laya.Agent(path)

    def questions(place: int) -> dict[str, object]:
        return {
            f"q{place}-{number}": {"type": "choice", "instructions": f"{place}?", "criteria": ["a", "b", f"c{number}"]}
            for number in range(4)
        }

    def ask(place: int) -> object:
        return shared.predict(f"state {place}", questions(place))

    with ThreadPoolExecutor(64) as pool:
        answered = list(pool.map(ask, range(256)))
    assert answered == [alone.predict(f"state {place}", questions(place)) for place in range(256)]
    assert len(reports) < 256, "no pass was shared"


def own_questions(number: int) -> dict[str, object]:
    return {f"q{number}": {"type": "choice", "instructions": f"Question {number}?", "criteria": ["yes", "no"]}}


def bulk(number: int) -> list[dict[str, object]]:
    return [{"state": f"state {one}", "questions": own_questions(one), "model": "english"} for one in range(number)]


def simulated_router(tmp_path: Path, batching: Batching | None, **options: object) -> laya.Router:
    path = str(write_checkpoint(tmp_path / "simulated", pass_ms=1, row_ms=0, device=str(tmp_path)))
    return laya.Router(models={"english": path}, agent_kwargs={"batching": batching, **options})


def test_requests_of_one_batch_share_passes_although_each_asks_its_own_questions(tmp_path: Path) -> None:
    reports: list[PassReport] = []
    shared = simulated_router(tmp_path, Batching(observe=reports.append)).predict_batch(bulk(64))
    assert sum(report.rows for report in reports) == 64
    assert len(reports) < 16, "the rows of one caller's groups went one by one"
    assert shared == simulated_router(tmp_path, None).predict_batch(bulk(64))


class Journal(laya.BaseHook):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_predict_start(self, ctx: laya.PredictContext) -> None:
        self.lines.append(f"start {ctx.states[0]}")

    def on_error(self, ctx: laya.PredictContext) -> None:
        self.lines.append(f"error {ctx.states[0]}: {type(ctx.error).__name__}")

    def on_predict_end(self, ctx: laya.PredictContext) -> None:
        self.lines.append(f"end {ctx.states[0]}")


def test_an_agent_s_own_hooks_see_groups_that_are_under_way_together_end_in_reverse(tmp_path: Path) -> None:
    journal = Journal()
    simulated_router(tmp_path, Batching(), hooks=journal).predict_batch(bulk(2))
    assert journal.lines == ["start state 0", "start state 1", "end state 1", "end state 0"]


def test_a_group_that_fails_ends_those_that_were_under_way_with_its_error(tmp_path: Path) -> None:
    journal = Journal()
    requests = [*bulk(2), {"state": "bad", "questions": {"q": {"type": "unknown"}}, "model": "english"}]
    with pytest.raises(ValueError, match="question 'q'"):
        simulated_router(tmp_path, Batching(), hooks=journal).predict_batch(requests)
    assert journal.lines == [
        *("start state 0", "start state 1", "start bad"),
        *("error bad: ValueError", "end bad"),
        *("error state 1: ValueError", "end state 1"),
        *("error state 0: ValueError", "end state 0"),
    ]
