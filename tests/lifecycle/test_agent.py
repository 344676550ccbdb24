"""Agent.predict_batch, system_one and predict: what happens between the call and its answer, sentence by sentence."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from laya import Agent, PredictContext
from laya.hooks import add_default_hook
from tests.lifecycle.recording import ANSWER, ENDS, QUESTIONS, STATE, At, Recorder, assert_same, raising, watch

MakeAgent = Callable[..., Agent]
STATES = [
    STATE,
    {"subject": "Login", "body": "The page crashes."},
    [{"role": "user", "content": "Where is my parcel?"}],
]


@pytest.mark.parametrize("method", ["system_one", "predict"])
def test_system_one_and_predict_call_predict_batch_with_one_state(
    agent: Agent, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = agent.predict_batch, []

    def spy(states: Any, questions: Any, **options: Any) -> Any:
        calls.append((states, questions))
        return real(states, questions, **options)

    monkeypatch.setattr(agent, "predict_batch", spy)
    result = getattr(agent, method)(STATE, QUESTIONS)
    assert calls == [([STATE], QUESTIONS)]
    assert result == real([STATE], QUESTIONS)[0]


@pytest.mark.parametrize("method", ["system_one", "predict"])
def test_system_one_inherits_every_hook_with_ctx_states_being_the_one_state(make_agent: MakeAgent, method: str) -> None:
    default, installed, per_call = Recorder(), Recorder(), Recorder()
    add_default_hook(default)
    getattr(make_agent(hooks=installed), method)(STATE, QUESTIONS, hooks=per_call)
    for hook in (default, installed, per_call):
        assert hook.events == ["on_predict_start", "on_predict_end"]
        assert hook.seen("on_predict_start")[0].states == [STATE]


def test_active_hooks_are_the_defaults_then_the_installed_then_the_per_call_ones(make_agent: MakeAgent) -> None:
    log: list[tuple[str, str]] = []
    add_default_hook(Recorder("D", log))
    agent = make_agent(hooks=[Recorder("A", log), Recorder("B", log)])
    agent.predict(STATE, QUESTIONS, hooks=Recorder("C", log))
    assert [name for name, event in log if event == "on_predict_start"] == ["D", "A", "B", "C"]


def test_the_context_names_states_questions_model_and_agent(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: (ctx.states, ctx.questions, ctx.model, ctx.agent, ctx.router, ctx.decision))
    agent.predict_batch(STATES, QUESTIONS, hooks=hook)
    assert hook.looked("on_predict_start") == [(STATES, QUESTIONS, agent.model_id, agent, None, None)]


def test_a_start_hook_sees_a_call_that_has_produced_nothing_yet(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: (ctx.results, ctx.usage, ctx.elapsed_ms, ctx.error))
    agent.predict(STATE, QUESTIONS, hooks=hook)
    assert hook.looked("on_predict_start") == [(None, None, None, None)]


def test_a_start_hook_may_rewrite_the_states(agent: Agent) -> None:
    def redact(ctx: PredictContext) -> None:
        ctx.states = ["redacted" for _ in ctx.states]

    given = ["secret", "secret too"]
    assert agent.predict_batch(given, QUESTIONS, on_predict_start=redact) == agent.predict_batch(
        ["redacted"] * 2, QUESTIONS
    )
    assert given == ["secret", "secret too"]


def test_a_start_hook_may_change_how_many_states_there_are(agent: Agent) -> None:
    def first_only(ctx: PredictContext) -> None:
        ctx.states = ctx.states[:1]

    assert len(agent.predict_batch(STATES, QUESTIONS, on_predict_start=first_only)) == 1


def test_a_start_hook_may_rewrite_the_questions(agent: Agent) -> None:
    def ask_less(ctx: PredictContext) -> None:
        ctx.questions = {"urgent": ctx.questions["urgent"]}

    result = agent.predict(STATE, QUESTIONS, on_predict_start=ask_less)
    assert list(result["answers"]) == ["urgent"]
    assert list(QUESTIONS) == ["team", "urgent"]


def test_the_next_start_hook_sees_what_the_one_before_it_wrote(agent: Agent) -> None:
    def rewrite(ctx: PredictContext) -> None:
        ctx.states = ["rewritten"]

    hook = Recorder(look=lambda ctx: ctx.states)
    agent.predict(STATE, QUESTIONS, hooks=[At("on_predict_start", rewrite), hook])
    assert hook.looked("on_predict_start") == [["rewritten"]]


@pytest.mark.parametrize("budget", ["max_len", "head_max_len"])
def test_a_start_hook_may_set_a_token_budget(agent: Agent, budget: str) -> None:
    questions = {"team": QUESTIONS["team"] | {"instructions": "Which of our teams should answer this? " * 20}}
    shorter = 100

    def set_budget(ctx: PredictContext) -> None:
        setattr(ctx, budget, shorter)

    budgets: dict[str, Any] = {"head_max_len": 80, budget: shorter}
    hooked = agent.predict(STATE * 20, questions, head_max_len=80, on_predict_start=set_budget)
    assert hooked == agent.predict(STATE * 20, questions, **budgets)
    assert hooked["usage"] != agent.predict(STATE * 20, questions, head_max_len=80)["usage"]


@pytest.mark.parametrize("budget", ["max_len", "head_max_len"])
def test_a_start_hook_sees_the_budget_of_the_call_and_overrides_it(agent: Agent, budget: str) -> None:
    seen = []

    def override(ctx: PredictContext) -> None:
        seen.append(getattr(ctx, budget))
        setattr(ctx, budget, 48)

    given: dict[str, Any] = {budget: 64}
    wanted: dict[str, Any] = {budget: 48}
    hooked = agent.predict(STATE * 20, QUESTIONS, on_predict_start=override, **given)
    assert seen == [64]
    assert hooked == agent.predict(STATE * 20, QUESTIONS, **wanted)


def test_a_start_hook_that_raises_aborts_the_call_before_tokenisation(make_agent: MakeAgent) -> None:
    agent = make_agent()
    kind = watch(agent)
    error = PermissionError("not this one")
    with pytest.raises(PermissionError) as caught:
        agent.predict(STATE, QUESTIONS, on_predict_start=raising(error))
    assert caught.value is error
    assert (kind.encoded, kind.passes) == ([], [])


def test_a_start_hook_that_raises_keeps_later_start_hooks_from_running(agent: Agent) -> None:
    later = Recorder()
    with pytest.raises(PermissionError):
        agent.predict(STATE, QUESTIONS, hooks=[At("on_predict_start", raising(PermissionError())), later])
    assert later.events == ENDS


def test_states_are_validated_after_the_start_hooks_and_inside_the_error_path(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: type(ctx.error).__name__)
    with pytest.raises(TypeError, match="list of states"):
        agent.predict_batch("one text", QUESTIONS, hooks=hook)
    assert hook.looks == [("on_predict_start", "NoneType"), ("on_error", "TypeError"), ("on_predict_end", "TypeError")]


def test_a_start_hook_may_mend_states_that_would_be_refused(agent: Agent) -> None:
    def wrap(ctx: PredictContext) -> None:
        ctx.states = [ctx.states]

    mended = agent.predict_batch(STATE, QUESTIONS, on_predict_start=wrap)
    assert mended == [agent.predict(STATE, QUESTIONS)]


def test_a_refused_question_takes_the_error_path_too(agent: Agent) -> None:
    hook = Recorder()
    with pytest.raises(ValueError, match="question 'q'"):
        agent.predict(STATE, {"q": {"type": "maybe", "instructions": "?"}}, hooks=hook)
    assert hook.events == ["on_predict_start", *ENDS]


def test_each_chunk_is_encoded_and_then_goes_through_one_pass(make_agent: MakeAgent) -> None:
    agent = make_agent()
    kind = watch(agent)
    states = [f"{STATE} {n}" for n in range(5)]
    results = agent.predict_batch(states, QUESTIONS, batch_size=2)
    assert kind.encoded == states
    assert kind.passes == [4, 4, 2]  # two questions each about two, two and one states
    for state, result in zip(states, results, strict=True):
        assert_same(agent.predict(state, QUESTIONS), result)


def test_the_batch_size_of_the_agent_counts_where_the_call_names_none(make_agent: MakeAgent) -> None:
    agent = make_agent(batch_size=3)
    kind = watch(agent)
    agent.predict_batch(["a", "b", "c", "d"], {"urgent": QUESTIONS["urgent"]})
    assert kind.passes == [3, 1]


def test_results_are_in_the_context_before_the_end_hooks_and_are_what_the_call_returns(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: ctx.results)
    results = agent.predict_batch(STATES, QUESTIONS, hooks=hook)
    assert hook.looked("on_predict_end")[0] is results
    assert len(results) == len(STATES)


def test_an_end_hook_may_replace_what_the_call_returns(agent: Agent) -> None:
    def replace(ctx: PredictContext) -> None:
        ctx.results = [ANSWER]

    assert agent.predict(STATE, QUESTIONS, on_predict_end=replace) is ANSWER


def test_the_same_context_flows_through_start_error_and_end(agent: Agent) -> None:
    hook = Recorder()
    with pytest.raises(ValueError, match="question"):
        agent.predict(STATE, {"q": {}}, hooks=hook)
    assert hook.events == ["on_predict_start", *ENDS]
    assert len({id(ctx) for _, ctx in hook.contexts}) == 1


def test_run_id_correlates_the_events_of_one_call_and_no_other(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: ctx.run_id)
    agent.predict(STATE, QUESTIONS, hooks=hook)
    agent.predict(STATE, QUESTIONS, hooks=hook)
    first, first_end, second, second_end = (found for _, found in hook.looks)
    assert first == first_end != second == second_end
    assert int(first, 16) >= 0
    assert len(first) == 32


def test_elapsed_ms_is_the_time_from_started_at_to_the_end_of_the_prediction(make_agent: MakeAgent) -> None:
    agent = make_agent()
    moments: list[float] = []
    watch(agent, before_forward=lambda: moments.append(time.perf_counter()))

    def at_start(ctx: PredictContext) -> None:
        moments.append(time.perf_counter())

    hook = Recorder(look=lambda ctx: (ctx.started_at, ctx.elapsed_ms, time.perf_counter()))
    agent.predict(STATE, QUESTIONS, hooks=hook, on_predict_start=at_start)
    started_at, elapsed_ms, now = hook.looked("on_predict_end")[0]
    in_start_hook, in_forward = moments
    assert started_at <= in_start_hook
    assert in_forward <= started_at + elapsed_ms / 1000 <= now


def test_elapsed_ms_is_there_for_the_end_hook_of_a_failed_call(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: ctx.elapsed_ms)
    with pytest.raises(ValueError, match="question"):
        agent.predict(STATE, {"q": {}}, hooks=hook)
    assert hook.looked("on_predict_end")[0] > 0


def test_usage_is_the_sum_over_the_results(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: ctx.usage)
    results = agent.predict_batch(STATES, QUESTIONS, hooks=hook)
    total = sum(result["usage"]["input_tokens"] for result in results)
    assert hook.looked("on_predict_end") == [{"input_tokens": total, "output_tokens": 0}]
    assert total > 0


def test_a_call_that_raised_before_any_result_leaves_results_and_usage_none(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: (ctx.results, ctx.usage))
    with pytest.raises(ValueError, match="question"):
        agent.predict(STATE, {"q": {}}, hooks=hook)
    assert hook.looked("on_predict_end") == [(None, None)]


def test_a_call_that_failed_after_a_skip_has_the_usage_of_the_skipped_results(agent: Agent) -> None:
    hook = Recorder(look=lambda ctx: (ctx.results, ctx.usage))
    skip = At("on_predict_start", lambda ctx: ctx.skip(ANSWER))
    with pytest.raises(PermissionError):
        agent.predict(STATE, QUESTIONS, hooks=[skip, hook], on_predict_start=raising(PermissionError()))
    assert hook.looked("on_predict_end") == [([ANSWER], ANSWER["usage"])]


def test_the_confidence_gate_has_judged_the_answers_before_the_end_hooks(agent: Agent) -> None:
    judged: dict[str, str] = {}

    def look(ctx: PredictContext) -> None:
        judged.update({qid: answer["abstention"] for qid, answer in (ctx.results or [])[0]["answers"].items()})

    agent.predict(STATE, QUESTIONS, on_predict_end=look, min_confidence=1.0)
    assert judged == {"team": "abstained", "urgent": "abstained"}


def test_without_min_confidence_the_gate_writes_nothing(agent: Agent) -> None:
    answers = agent.predict(STATE, QUESTIONS)["answers"].values()
    assert not [answer for answer in answers if {"abstention", "low_confidence"} & set(answer)]
