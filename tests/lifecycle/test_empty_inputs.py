"""Empty inputs: hooks still fire, nothing is tokenised, and usage is a dict of zeros; every row and column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laya import Agent, Router
from tests.lifecycle.recording import QUESTIONS, STATE, Recorder, watch

ZEROS = {"input_tokens": 0, "output_tokens": 0}
EMPTY = {"model": "laya-rl-agent", "answers": {}, "usage": ZEROS}

CALLS: dict[str, tuple[Callable[[Agent, Any], Any], list[Any]]] = {
    "predict_batch([])": (lambda agent, hook: agent.predict_batch([], QUESTIONS, hooks=hook), []),
    "predict_batch(states, {})": (lambda agent, hook: agent.predict_batch([STATE] * 3, {}, hooks=hook), [EMPTY] * 3),
    "predict_batch([], {})": (lambda agent, hook: agent.predict_batch([], {}, hooks=hook), []),
    "system_one(state, {})": (lambda agent, hook: [agent.system_one(STATE, {}, hooks=hook)], [EMPTY]),
    "predict(state, {})": (lambda agent, hook: [agent.predict(STATE, {}, hooks=hook)], [EMPTY]),
}
EACH_ROW = pytest.mark.parametrize(("call", "results"), CALLS.values(), ids=CALLS.keys())


@EACH_ROW
def test_the_results_are_one_empty_answer_payload_per_state(agent: Agent, call: Any, results: list[Any]) -> None:
    hook = Recorder(look=lambda ctx: ctx.results)
    assert call(agent, hook) == results
    assert hook.looked("on_predict_end") == [results]


@EACH_ROW
def test_usage_at_the_end_is_a_dict_of_zeros_and_never_none(agent: Agent, call: Any, results: list[Any]) -> None:
    hook = Recorder(look=lambda ctx: ctx.usage)
    call(agent, hook)
    assert hook.looked("on_predict_end") == [ZEROS]


@EACH_ROW
def test_on_predict_start_and_on_predict_end_run(agent: Agent, call: Any, results: list[Any]) -> None:
    hook = Recorder()
    call(agent, hook)
    assert hook.events == ["on_predict_start", "on_predict_end"]


@EACH_ROW
def test_no_tokenisation_or_forward_pass_happens(
    make_agent: Callable[..., Agent], call: Any, results: list[Any]
) -> None:
    agent = make_agent()
    kind = watch(agent)
    call(agent, None)
    assert (kind.encoded, kind.passes) == ([], [])


def test_only_a_call_that_raised_before_producing_results_has_no_usage(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: ctx.usage)
    with pytest.raises(TypeError):
        agent.predict_batch([None], {}, hooks=hook)
    assert hook.looked("on_predict_end") == [None]


def test_the_gate_of_an_empty_batch_still_runs_and_finds_nothing_to_judge(agent: Agent) -> None:
    assert agent.predict_batch([], QUESTIONS, min_confidence=0.9) == []


def test_a_router_answers_a_request_without_questions_in_the_same_way(make_router: Callable[..., Router]) -> None:
    hook = Recorder(look=lambda ctx: ctx.usage)
    result = make_router().predict(STATE, {}, hooks=hook)
    routing = result.pop("routing")
    assert (result, routing["model"]) == (EMPTY, "english")
    assert hook.looked("on_predict_end") == [ZEROS]
