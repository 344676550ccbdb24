"""Router.route and Router.predict: routing, loading and answering one request, sentence by sentence."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from laya import Agent, PredictContext, RouteDecision, Router
from laya.hooks import add_default_hook
from tests.lifecycle.recording import ANSWER, ENDS, QUESTIONS, STATE, At, Recorder, raising, watch

MakeRouter = Callable[..., Router]
MakeAgent = Callable[..., Agent]
PAIR = ["on_predict_start", "on_predict_end"]
WHOLE = ["on_route", "on_load", *PAIR]


def pin(name: str) -> At:
    """A hook that sends every request to one checkpoint."""

    def on_route(ctx: PredictContext) -> None:
        ctx.decision = {**(ctx.decision or {}), "model": name}

    return At("on_route", on_route)


def model_of(ctx: PredictContext) -> Any:
    return ctx.decision and ctx.decision["model"]


def test_a_call_meets_route_load_start_and_end_in_this_order(make_router: MakeRouter) -> None:
    hook = Recorder()
    make_router(hooks=hook).predict(STATE, QUESTIONS)
    assert hook.events == WHOLE


def test_active_hooks_are_the_defaults_then_the_installed_then_the_per_call_ones(make_router: MakeRouter) -> None:
    log: list[tuple[str, str]] = []
    add_default_hook(Recorder("D", log))
    router = make_router(hooks=[Recorder("A", log), Recorder("B", log)])
    router.predict(STATE, QUESTIONS, hooks=Recorder("C", log))
    for event in ("on_route", *PAIR):
        assert [name for name, each in log if each == event] == ["D", "A", "B", "C"]


def test_on_route_runs_before_any_checkpoint_is_loaded(make_router: MakeRouter) -> None:
    router = make_router()
    hook = Recorder(look=lambda ctx: router.loaded)
    router.predict(STATE, QUESTIONS, hooks=hook)
    assert hook.looked("on_route") == [[]]
    assert hook.looked("on_predict_start") == [["english"]]


def test_on_route_sees_the_state_the_questions_the_decision_and_the_router(make_router: MakeRouter) -> None:
    router = make_router()
    hook = Recorder(look=lambda ctx: (ctx.states, ctx.questions, model_of(ctx), ctx.router, ctx.agent))
    router.predict(STATE, QUESTIONS, hooks=hook)
    assert hook.looked("on_route") == [([STATE], QUESTIONS, "english", router, None)]


def test_an_on_route_hook_may_replace_the_decision_and_only_that_checkpoint_is_loaded(make_router: MakeRouter) -> None:
    router = make_router()
    result = router.predict(STATE, QUESTIONS, hooks=pin("typed-decisions"))
    assert result["routing"]["model"] == "typed-decisions"
    assert router.loaded == ["typed-decisions"]


def test_an_on_route_hook_may_change_the_decision_in_place(make_router: MakeRouter) -> None:
    router = make_router()

    def change(ctx: PredictContext) -> None:
        ctx.decision["model"] = "typed-decisions"  # type: ignore[index]

    router.predict(STATE, QUESTIONS, hooks=At("on_route", change))
    assert router.loaded == ["typed-decisions"]


def test_a_checkpoint_pinned_by_its_alias_is_the_context_s_model_by_its_own_name(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: ctx.model)
    router = make_router()
    router.predict(STATE, QUESTIONS, hooks=[pin("ml"), hook])
    assert hook.looked("on_predict_start") == ["multilingual"]
    assert router.loaded == ["multilingual"]


def test_route_fires_on_route_and_nothing_else_and_loads_nothing(make_router: MakeRouter) -> None:
    router, hook = make_router(), Recorder()
    decision = router.route(STATE, QUESTIONS, hooks=hook)
    assert hook.events == ["on_route"]
    assert router.loaded == []
    assert isinstance(decision, RouteDecision)
    assert decision is hook.contexts[0][1].decision


def test_route_returns_the_decision_that_a_hook_left(make_router: MakeRouter) -> None:
    wanted = RouteDecision(model="typed-decisions", repo=None, reason="Pinned.", detection=None, workflow=None)

    def replace(ctx: PredictContext) -> None:
        ctx.decision = wanted

    assert make_router().route(STATE, hooks=At("on_route", replace)) is wanted


@pytest.mark.parametrize("left", [None, "english", {"repo": "x"}])
def test_a_decision_without_a_model_is_refused_by_name(make_router: MakeRouter, left: Any) -> None:
    def ruin(ctx: PredictContext) -> None:
        ctx.decision = left

    with pytest.raises(TypeError, match="on_route hook left"):
        make_router().route(STATE, hooks=At("on_route", ruin))


def test_a_start_hook_sees_state_questions_decision_model_agent_and_router(make_router: MakeRouter) -> None:
    router = make_router()
    hook = Recorder(look=lambda ctx: (ctx.states, ctx.questions, model_of(ctx), ctx.model, ctx.agent, ctx.router))
    router.predict(STATE, QUESTIONS, model="ml", max_len=99, head_max_len=66, hooks=hook)
    agent = router.load("multilingual")
    assert hook.looked("on_predict_start") == [([STATE], QUESTIONS, "multilingual", "multilingual", agent, router)]
    ctx = hook.seen("on_predict_start")[0]
    assert (ctx.max_len, ctx.head_max_len) == (99, 66)


def test_a_resident_checkpoint_is_used_as_it_is(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)
    agent = router.load("english")
    router.predict(STATE, QUESTIONS, model="english")
    assert hook.events == ["on_load", "on_route", *PAIR]
    assert hook.seen("on_predict_start")[0].agent is agent


def test_started_at_is_set_after_route_and_load_and_just_before_the_start_hooks(make_router: MakeRouter) -> None:
    router = make_router()
    hook = Recorder(look=lambda ctx: (time.perf_counter(), ctx.started_at))
    router.predict(STATE, QUESTIONS, hooks=hook, model="english")
    with router.hooks_installed(hook):
        router.predict(STATE, QUESTIONS, model="multilingual")
    routed, _ = hook.looked("on_route")[-1]
    loaded, _ = hook.looked("on_load")[-1]
    now, started_at = hook.looked("on_predict_start")[-1]
    assert routed < loaded < started_at < now


def test_elapsed_ms_is_the_prediction_alone(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: (ctx.started_at, ctx.elapsed_ms, time.perf_counter()))
    before = time.perf_counter()
    make_router(hooks=hook).predict(STATE, QUESTIONS)
    started_at, elapsed_ms, now = hook.looked("on_predict_end")[0]
    assert before < started_at
    assert started_at + elapsed_ms / 1000 <= now


def test_router_hooks_wrap_the_whole_call_and_the_agent_s_own_hooks_run_inside(
    make_router: MakeRouter, make_agent: MakeAgent
) -> None:
    log: list[tuple[str, str]] = []
    router = make_router(hooks=Recorder("router", log))
    router.attach("english", make_agent("english", hooks=Recorder("agent", log)))
    router.predict(STATE, QUESTIONS, model="english", hooks=Recorder("call", log))
    assert log == [
        ("router", "on_route"),
        ("call", "on_route"),
        ("router", "on_predict_start"),
        ("call", "on_predict_start"),
        ("agent", "on_predict_start"),
        ("agent", "on_predict_end"),
        ("router", "on_predict_end"),
        ("call", "on_predict_end"),
    ]


def test_the_agent_s_hooks_see_the_agent_s_own_context(make_router: MakeRouter, make_agent: MakeAgent) -> None:
    inner, outer = Recorder(), Recorder()
    router = make_router(hooks=outer)
    agent = router.attach("english", make_agent("english", hooks=inner))
    router.predict(STATE, QUESTIONS, model="english")
    ctx, around = inner.seen("on_predict_start")[0], outer.seen("on_predict_start")[0]
    assert (ctx.router, ctx.decision, ctx.model) == (None, None, agent.model_id)
    assert ctx.run_id != around.run_id


def test_a_result_carries_the_decision_as_routing_and_is_the_only_one_of_the_context(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: (ctx.results, ctx.decision))
    router = make_router()
    result = router.predict(STATE, QUESTIONS, hooks=hook)
    (results, decision) = hook.looked("on_predict_end")[0]
    assert results == [result]
    assert result["routing"] == decision == router.route(STATE, QUESTIONS)
    assert set(result) == {"model", "answers", "usage", "routing"}


def test_the_answers_are_the_agent_s(make_router: MakeRouter) -> None:
    router = make_router()
    result = router.predict(STATE, QUESTIONS, model="english", max_len=90)
    result.pop("routing")
    assert result == router.load("english").predict(STATE, QUESTIONS, max_len=90)


def test_a_start_hook_may_rewrite_state_questions_and_budget(make_router: MakeRouter) -> None:
    def rewrite(ctx: PredictContext) -> None:
        ctx.states, ctx.questions, ctx.max_len = [STATE * 9], {"urgent": QUESTIONS["urgent"]}, 60

    router = make_router()
    result = router.predict("something else", QUESTIONS, model="english", on_predict_start=rewrite)
    result.pop("routing")
    assert result == router.load("english").predict(STATE * 9, {"urgent": QUESTIONS["urgent"]}, max_len=60)


def test_a_start_hook_may_mend_a_state_that_would_be_refused(make_router: MakeRouter) -> None:
    def mend(ctx: PredictContext) -> None:
        ctx.states = [STATE]

    assert make_router().predict(None, QUESTIONS, model="english", on_predict_start=mend)["answers"]


def test_a_refused_state_meets_the_start_hooks_and_then_the_error_path(make_router: MakeRouter) -> None:
    hook = Recorder()
    with pytest.raises(TypeError, match="None"):
        make_router().predict(None, QUESTIONS, hooks=hook)
    assert hook.events == ["on_route", "on_predict_start", *ENDS]


def test_a_skip_still_adds_routing_so_that_the_return_shape_is_stable(make_router: MakeRouter) -> None:
    router = make_router()
    kind = watch(router.load("english"))
    skipped = router.predict(STATE, QUESTIONS, on_predict_start=lambda ctx: ctx.skip(dict(ANSWER)))
    assert skipped == ANSWER | {"routing": router.route(STATE, QUESTIONS)}
    assert (kind.encoded, kind.passes) == ([], [])


def test_a_skipped_result_that_brings_its_routing_keeps_it(make_router: MakeRouter) -> None:
    cached = ANSWER | {"routing": {"model": "elsewhere"}}
    skipped = make_router().predict(STATE, QUESTIONS, on_predict_start=lambda ctx: ctx.skip(cached))
    assert skipped["routing"] == {"model": "elsewhere"}


def test_the_agent_s_hooks_do_not_run_for_a_call_that_the_router_s_hooks_skipped(make_router: MakeRouter) -> None:
    inner = Recorder()
    router = make_router(agent_kwargs={"hooks": inner})
    router.predict(STATE, QUESTIONS, on_predict_start=lambda ctx: ctx.skip(dict(ANSWER)))
    assert inner.events == []


def test_usage_and_gate_are_there_for_the_end_hooks_of_computed_and_of_skipped_results(make_router: MakeRouter) -> None:
    router, seen = make_router(), []

    def look(ctx: PredictContext) -> None:
        seen.append((ctx.usage, ctx.results[0]["answers"]["team"]["abstention"]))  # type: ignore[index]

    def skip(ctx: PredictContext) -> None:
        ctx.skip({**ANSWER, "answers": {"team": dict(ANSWER["answers"]["team"])}})

    result = router.predict(STATE, QUESTIONS, on_predict_end=look, min_confidence=1.0)
    router.predict(STATE, QUESTIONS, on_predict_start=skip, on_predict_end=look, min_confidence=0.3)
    computed = {"input_tokens": result["usage"]["input_tokens"], "output_tokens": 0}
    assert seen == [(computed, "abstained"), (ANSWER["usage"], "passed")]


def test_any_failure_fires_on_error_and_on_predict_end_and_is_raised_again(make_router: MakeRouter) -> None:
    error = RuntimeError("device lost")
    hook = Recorder(look=lambda ctx: ctx.error)
    router = make_router(hooks=hook, agent_kwargs={"hooks": At("on_predict_start", raising(error))})
    with pytest.raises(RuntimeError) as caught:
        router.predict(STATE, QUESTIONS)
    assert caught.value is error
    assert hook.events == ["on_route", "on_load", "on_predict_start", *ENDS]
    assert hook.looked("on_error") == hook.looked("on_predict_end") == [error]


def test_a_failed_call_has_elapsed_ms_and_no_usage(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: (ctx.elapsed_ms is not None, ctx.usage, ctx.results))
    with pytest.raises(ValueError, match="question"):
        make_router().predict(STATE, {"q": {}}, hooks=hook)
    assert hook.looked("on_predict_end") == [(True, None, None)]


def test_a_routing_failure_is_told_to_the_hooks_with_no_decision(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: (type(ctx.error), ctx.decision, ctx.model, ctx.agent))
    with pytest.raises(ValueError, match="unknown checkpoint 'nobody'"):
        make_router().predict(STATE, QUESTIONS, model="nobody", hooks=hook)
    assert hook.looks == [(event, (ValueError, None, None, None)) for event in ENDS]


def test_a_loading_failure_is_told_to_the_hooks_with_its_decision(make_router: MakeRouter) -> None:
    router = make_router(models={"english": "/there/is/no/such/place"})
    hook = Recorder(look=lambda ctx: (type(ctx.error), ctx.model, ctx.agent))
    with pytest.raises(FileNotFoundError):
        router.predict(STATE, QUESTIONS, model="english", hooks=hook)
    assert hook.events == ["on_route", *ENDS]
    assert hook.looked("on_error") == [(FileNotFoundError, "english", None)]


def test_a_hook_that_refuses_to_route_fails_the_call_before_anything_is_loaded(make_router: MakeRouter) -> None:
    router = make_router()
    with pytest.raises(PermissionError):
        router.predict(STATE, QUESTIONS, hooks=At("on_route", raising(PermissionError("not here"))))
    assert router.loaded == []


def test_the_policy_of_the_call_holds_for_its_route_hooks_too(make_router: MakeRouter) -> None:
    hook = At("on_route", raising(ConnectionError("telemetry is down")))
    with pytest.warns(RuntimeWarning, match="telemetry is down"):
        result = make_router().predict(STATE, QUESTIONS, hooks=hook, hooks_raise=False)
    assert result["answers"]


def test_predict_returns_the_first_of_the_context_s_results(make_router: MakeRouter) -> None:
    def replace(ctx: PredictContext) -> None:
        ctx.results = [ANSWER]

    assert make_router().predict(STATE, QUESTIONS, on_predict_end=replace) is ANSWER


def test_lang_reaches_the_agent_that_has_temperatures_for_it(make_router: MakeRouter) -> None:
    flat = {"de": {"temperature": [5.0, 5.0, 5.0]}}
    router = make_router(agent_kwargs={"lang_temperatures": flat})
    result = router.predict(STATE, QUESTIONS, lang="de-AT")
    result.pop("routing")
    agent = router.load("multilingual")
    assert result == agent.predict(STATE, QUESTIONS, lang="de") != agent.predict(STATE, QUESTIONS)


def test_an_attached_agent_of_another_make_needs_no_more_than_system_one(make_router: MakeRouter) -> None:
    class Other:
        def system_one(self, state: Any, questions: Any) -> dict[str, Any]:
            return {"model": "other", "answers": {"said": state}, "usage": {}}

    router = make_router()
    router.attach("english", Other())
    result = router.predict(STATE, QUESTIONS, lang="en")
    assert result["answers"] == {"said": STATE}
    assert result["routing"]["model"] == "english"
