"""Caching with skip: what a hit leaves out, what still runs, and what skip refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laya import Agent, PredictContext
from tests.lifecycle.recording import ANSWER, QUESTIONS, STATE, At, Recorder, watch

MakeAgent = Callable[..., Agent]


def skipping(results: Any) -> At:
    return At("on_predict_start", lambda ctx: ctx.skip(results))


def test_a_skipped_call_is_neither_tokenised_nor_passed_forward(make_agent: MakeAgent) -> None:
    agent = make_agent()
    kind = watch(agent)
    assert agent.predict(STATE, QUESTIONS, hooks=skipping([dict(ANSWER)])) == ANSWER
    assert (kind.encoded, kind.passes) == ([], [])


def test_on_predict_end_still_runs_after_a_skip_with_usage_and_elapsed_ms(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: (ctx.usage, ctx.elapsed_ms is not None, ctx.error))
    agent.predict(STATE, QUESTIONS, hooks=[skipping(dict(ANSWER)), hook])
    assert hook.events == ["on_predict_start", "on_predict_end"]
    assert hook.looked("on_predict_end") == [(ANSWER["usage"], True, None)]


def test_start_hooks_after_the_one_that_skipped_still_run_and_see_the_results(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: ctx.results)
    agent.predict(STATE, QUESTIONS, hooks=[skipping(ANSWER), hook])
    assert hook.looked("on_predict_start") == [[ANSWER]]


def test_a_later_start_hook_may_take_a_skip_back(agent: Agent) -> None:
    def forget(ctx: PredictContext) -> None:
        ctx.results = None

    fresh = agent.predict(STATE, QUESTIONS, hooks=[skipping(ANSWER), At("on_predict_start", forget)])
    assert fresh == agent.predict(STATE, QUESTIONS)


def test_results_that_a_start_hook_assigns_itself_count_as_a_skip(make_agent: MakeAgent) -> None:
    def assign(ctx: PredictContext) -> None:
        ctx.results = [ANSWER]

    agent = make_agent()
    kind = watch(agent)
    assert agent.predict(STATE, QUESTIONS, on_predict_start=assign) is ANSWER
    assert kind.encoded == []


def test_a_miss_runs_the_forward_pass_and_its_end_hook_can_store_the_result(make_agent: MakeAgent) -> None:
    agent = make_agent()
    kept: list[Any] = []
    kind = watch(agent)
    result = agent.predict(STATE, QUESTIONS, on_predict_end=lambda ctx: kept.extend(ctx.results or []))
    assert kept == [result]
    assert kind.passes == [2]


def test_a_hit_is_not_validated_because_nothing_of_it_is_asked(agent: Agent) -> None:
    assert agent.predict(STATE, {"q": {}}, hooks=skipping(ANSWER)) is ANSWER


def test_a_hit_is_judged_by_the_gate_of_this_call(agent: Agent) -> None:
    stored = {"answers": {"team": {"type": "choice", "answer_confidence": 0.4, "low_confidence": True}}}
    result = agent.predict(STATE, QUESTIONS, hooks=skipping(stored), min_confidence=0.3)
    team = result["answers"]["team"]
    assert (team["abstention"], team["abstention_threshold"]) == ("passed", 0.3)
    assert "low_confidence" not in team


def test_skip_takes_one_result_for_each_state(agent: Agent) -> None:
    results = [ANSWER | {"n": n} for n in range(3)]
    assert agent.predict_batch(["a", "b", "c"], QUESTIONS, hooks=skipping(results)) == results


@pytest.mark.parametrize("one", [ANSWER, [ANSWER], (ANSWER,)], ids=["bare", "list", "tuple"])
def test_skip_takes_one_result_for_the_whole_call(agent: Agent, one: Any) -> None:
    assert agent.predict_batch(["a", "b", "c"], QUESTIONS, hooks=skipping(one)) == [ANSWER]


def test_an_empty_batch_can_be_skipped_with_no_result_because_it_has_no_state(agent: Agent) -> None:
    assert agent.predict_batch([], QUESTIONS, hooks=skipping([])) == []


@pytest.mark.parametrize(
    "wrong",
    [[], [ANSWER] * 2, [ANSWER] * 4, None, "text", b"bytes", 7, [None], ["text", "text", "text"], {ANSWER["model"]}],
    ids=["none of three", "two of three", "four of three", "None", "str", "bytes", "int", "[None]", "texts", "set"],
)
def test_skip_refuses_anything_else_with_a_value_error(agent: Agent, wrong: Any) -> None:
    hook = Recorder(look=lambda ctx: type(ctx.error))
    with pytest.raises(ValueError, match=r"ctx\.skip\(\) takes one result"):
        agent.predict_batch(["a", "b", "c"], QUESTIONS, hooks=[hook, skipping(wrong)])
    assert hook.looked("on_predict_end") == [ValueError]
