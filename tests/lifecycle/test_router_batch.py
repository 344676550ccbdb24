"""Router.predict_batch: many requests, each with its own lifecycle, sharing forward passes; sentence by sentence."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from laya import Agent, PredictContext, Router
from laya.hooks import add_default_hook
from tests.lifecycle.recording import ANSWER, QUESTIONS, STATE, At, Recorder, assert_same, watch

MakeRouter = Callable[..., Router]
MakeAgent = Callable[..., Agent]

URGENT = {"urgent": QUESTIONS["urgent"]}


def request(state: Any, model: str | None = "english", questions: Any = QUESTIONS, **more: Any) -> dict[str, Any]:
    return {"state": state, "questions": questions, **({} if model is None else {"model": model}), **more}


def states_of(contexts: list[PredictContext]) -> list[Any]:
    return [ctx.states[0] for ctx in contexts]


def calls_of(hook: Recorder) -> list[list[Any]]:
    """The states of each call that reached an Agent, from a hook of the Agent's own."""
    return [list(ctx.states) for ctx in hook.seen("on_predict_start")]


def test_each_result_is_what_predict_returns_for_that_request(make_router: MakeRouter) -> None:
    router = make_router(max_loaded=3)
    requests = [
        request(STATE, model=None),
        request("Die Seite stürzt beim Anmelden ständig ab, bitte helfen Sie mir.", model=None),
        request([{"role": "user", "content": "again"}], "typed"),
        request(STATE * 9, max_len=70),
        request(STATE, questions=URGENT),
        request("no questions", questions={}),
    ]
    for one, result in zip(requests, router.predict_batch(requests), strict=True):
        assert_same(router.predict(**one), result)


def test_every_request_gets_its_own_context_run_id_and_elapsed_ms(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: (ctx.run_id, ctx.elapsed_ms))
    make_router().predict_batch([request("a"), request("b"), request("c", "ml")], hooks=hook)
    assert len({id(ctx) for ctx in hook.seen("on_predict_start")}) == 3
    ends = hook.looked("on_predict_end")
    assert len({run_id for run_id, _ in ends}) == len({elapsed for _, elapsed in ends}) == 3


def test_active_hooks_are_the_defaults_then_the_installed_then_the_per_call_ones(make_router: MakeRouter) -> None:
    log: list[tuple[str, str]] = []
    add_default_hook(Recorder("D", log))
    router = make_router(hooks=[Recorder("A", log), Recorder("B", log)])
    router.predict_batch([request("a")], hooks=Recorder("C", log))
    for event in ("on_route", "on_predict_start", "on_predict_end"):
        assert [name for name, each in log if each == event] == ["D", "A", "B", "C"]


@pytest.mark.parametrize("nothing", [None, []])
def test_none_and_an_empty_list_of_hooks_add_nothing(make_router: MakeRouter, nothing: Any) -> None:
    log: list[tuple[str, str]] = []
    make_router(hooks=Recorder("A", log)).predict_batch([request("a")], hooks=nothing)
    assert [name for name, event in log if event == "on_predict_start"] == ["A"]


def test_on_route_fires_once_per_request_in_order_before_any_checkpoint_is_loaded(make_router: MakeRouter) -> None:
    router = make_router()
    hook = Recorder(look=lambda ctx: (ctx.states[0], router.loaded))
    router.predict_batch([request("a"), request("b", "ml"), request("c")], hooks=hook)
    assert hook.looked("on_route") == [("a", []), ("b", []), ("c", [])]
    assert hook.events[:3] == ["on_route"] * 3


def test_route_batch_decides_each_request_in_order_and_loads_nothing(make_router: MakeRouter) -> None:
    router, hook = make_router(), Recorder()
    decisions = router.route_batch([request("a", "ml"), request("b", "typed")], hooks=hook)
    assert [decision["model"] for decision in decisions] == ["multilingual", "typed-decisions"]
    assert hook.events == ["on_route", "on_route"]
    assert router.loaded == []


def test_checkpoints_are_worked_off_in_order_of_first_appearance_each_in_input_order(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(max_loaded=3, hooks=hook)
    models = ["typed", "en", "ml", "en", "typed"]
    results = router.predict_batch([request(f"{n}", model) for n, model in enumerate(models)])
    assert [ctx.model for ctx in hook.seen("on_load")] == ["typed-decisions", "english", "multilingual"]
    assert states_of(hook.seen("on_predict_start")) == ["0", "4", "1", "3", "2"]
    wanted = ["typed-decisions", "english", "multilingual", "english", "typed-decisions"]
    assert [result["routing"]["model"] for result in results] == wanted


def test_a_checkpoint_is_loaded_before_its_requests_start_and_after_those_before_it_ended(
    make_router: MakeRouter,
) -> None:
    hook = Recorder()
    make_router(hooks=hook).predict_batch([request("a"), request("b", "ml")])
    one = ["on_load", "on_predict_start", "on_predict_end"]
    assert hook.events == ["on_route", "on_route", *one, *one]


def test_a_start_hook_sees_the_request_its_decision_model_agent_router_and_budgets(make_router: MakeRouter) -> None:
    router = make_router()
    hook = Recorder(look=lambda ctx: (ctx.model, ctx.router, ctx.max_len, ctx.head_max_len, ctx.agent))
    router.predict_batch([request("a", max_len=80, head_max_len=60), request("b")], hooks=hook)
    agent = router.load("english")
    assert hook.looked("on_predict_start") == [
        ("english", router, 80, 60, agent),
        ("english", router, None, None, agent),
    ]
    first = hook.seen("on_predict_start")[0]
    assert (first.states, first.questions, first.decision["model"]) == (["a"], QUESTIONS, "english")  # type: ignore[index]


def test_every_start_of_a_checkpoint_s_requests_comes_before_any_of_their_ends(make_router: MakeRouter) -> None:
    hook = Recorder()
    make_router().predict_batch([request("a"), request("b", questions=URGENT), request("c")], hooks=hook)
    assert hook.events[3:] == ["on_predict_start"] * 3 + ["on_predict_end"] * 3


def test_a_cache_filled_at_the_end_serves_a_duplicate_across_calls_but_not_within_a_group(
    make_router: MakeRouter,
) -> None:
    kept: dict[Any, dict[str, Any]] = {}
    hits: list[Any] = []

    class Cache:
        def on_predict_start(self, ctx: PredictContext) -> None:
            if ctx.states[0] in kept:
                hits.append(ctx.states[0])
                ctx.skip(dict(kept[ctx.states[0]]))

        def on_predict_end(self, ctx: PredictContext) -> None:
            assert ctx.results is not None
            kept[ctx.states[0]] = ctx.results[0]

    router = make_router(hooks=Cache())
    router.predict_batch([request("same"), request("same")])
    assert hits == []
    router.predict_batch([request("same"), request("same")])
    assert hits == ["same", "same"]


def test_requests_end_in_the_reverse_of_the_order_in_which_they_started(make_router: MakeRouter) -> None:
    hook = Recorder()
    make_router().predict_batch([request(state) for state in "abc"], hooks=hook)
    assert states_of(hook.seen("on_predict_start")) == ["a", "b", "c"]
    assert states_of(hook.seen("on_predict_end")) == ["c", "b", "a"]


def test_all_end_hooks_of_one_request_run_before_those_of_the_next_in_list_order(make_router: MakeRouter) -> None:
    log: list[tuple[str, str]] = []
    make_router().predict_batch([request("a"), request("b")], hooks=[Recorder("A", log), Recorder("B", log)])
    assert [name for name, event in log if event == "on_predict_end"] == ["A", "B", "A", "B"]


def test_a_contextvar_set_in_start_and_reset_in_end_unwinds_to_the_value_it_found(make_router: MakeRouter) -> None:
    current: ContextVar[str] = ContextVar("current", default="nothing")
    found: list[str] = []

    class Trace:
        def __init__(self) -> None:
            self.tokens: dict[str, Any] = {}

        def on_predict_start(self, ctx: PredictContext) -> None:
            self.tokens[ctx.run_id] = current.set(ctx.states[0])

        def on_predict_end(self, ctx: PredictContext) -> None:
            found.append(current.get())
            current.reset(self.tokens.pop(ctx.run_id))

    current.set("the caller's")
    make_router().predict_batch([request("a"), request("b"), request("c", "ml"), request("d", "ml")], hooks=Trace())
    assert found == ["b", "a", "d", "c"]
    assert current.get() == "the caller's"


def test_requests_with_the_same_questions_and_budgets_share_one_call_of_the_agent(make_router: MakeRouter) -> None:
    inner = Recorder()
    router = make_router(agent_kwargs={"hooks": inner})
    kind = watch(router.load("english"))
    router.predict_batch([request("a"), request("b", questions=dict(QUESTIONS)), request("c")])
    assert calls_of(inner) == [["a", "b", "c"]]
    assert kind.passes == [6]


def test_the_batch_size_of_the_call_reaches_the_agent(make_router: MakeRouter) -> None:
    router = make_router()
    kind = watch(router.load("english"))
    router.predict_batch([request(state) for state in "abc"], batch_size=1)
    assert kind.passes == [2, 2, 2]


DIFFERENT = {
    "questions": {"questions": URGENT},
    "order of questions": {"questions": dict(reversed(QUESTIONS.items()))},
    "order of options": {
        "questions": QUESTIONS
        | {"team": QUESTIONS["team"] | {"criteria": dict(reversed(QUESTIONS["team"]["criteria"].items()))}}
    },
    "type of a label": {"questions": QUESTIONS | {"team": QUESTIONS["team"] | {"criteria": [1, 2]}}},
    "max_len": {"max_len": 100},
    "head_max_len": {"head_max_len": 100},
}


@pytest.mark.parametrize("other", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_requests_that_differ_in_questions_or_budget_share_no_call(make_router: MakeRouter, other: Any) -> None:
    inner = Recorder()
    router = make_router(agent_kwargs={"hooks": inner})
    router.predict_batch([request("a"), request("b", **other), request("c")])
    assert calls_of(inner) == [["a", "c"], ["b"]]


def test_labels_that_python_counts_as_equal_keep_requests_apart(make_router: MakeRouter) -> None:
    inner = Recorder()
    router = make_router(agent_kwargs={"hooks": inner})

    def asking(*labels: Any) -> dict[str, Any]:
        return {"team": QUESTIONS["team"] | {"criteria": list(labels)}}

    results = router.predict_batch([request("a", questions=asking(1, 2)), request("b", questions=asking(True, 2.0))])
    assert calls_of(inner) == [["a"], ["b"]]
    assert [type(label) for label in results[1]["answers"]["team"]["probabilities"]] == [bool, float]


def test_a_batch_that_mixes_budgets_makes_one_call_per_budget(make_router: MakeRouter) -> None:
    inner = Recorder(look=lambda ctx: ctx.max_len)
    router = make_router(agent_kwargs={"hooks": inner})
    router.predict_batch([request(f"{n}", max_len=budget) for n, budget in enumerate([80, None, 90, 80, None])])
    assert calls_of(inner) == [["0", "3"], ["1", "4"], ["2"]]
    assert inner.looked("on_predict_start") == [80, None, 90]


def test_languages_share_a_call_unless_the_checkpoint_has_temperatures_for_one(make_router: MakeRouter) -> None:
    inner = Recorder()
    router = make_router(agent_kwargs={"hooks": inner, "lang_temperatures": {"de": {"temperature": [5.0, 5.0, 5.0]}}})
    languages = ["fr", "de", "es", "de-AT"]
    results = router.predict_batch([request(f"{n}", None, lang=lang) for n, lang in enumerate(languages)])
    assert calls_of(inner) == [["0", "2"], ["1", "3"]]
    for n, (lang, result) in enumerate(zip(languages, results, strict=True)):
        assert_same(router.predict(f"{n}", QUESTIONS, lang=lang), result)


def test_a_start_hook_that_replaces_state_questions_or_budget_changes_its_own_request_only(
    make_router: MakeRouter,
) -> None:
    def change_the_second(ctx: PredictContext) -> None:
        if ctx.states == ["b"]:
            ctx.states, ctx.questions, ctx.max_len = [STATE * 9], URGENT, 60

    shared = dict(QUESTIONS)
    router = make_router()
    requests = [request(state, questions=shared) for state in "abc"]
    first, second, third = router.predict_batch(requests, on_predict_start=change_the_second)
    assert shared == QUESTIONS
    assert requests[1] == request("b", questions=shared)
    assert_same(router.predict("a", QUESTIONS, model="english"), first)
    assert_same(router.predict(STATE * 9, URGENT, model="english", max_len=60), second)
    assert_same(router.predict("c", QUESTIONS, model="english"), third)


def test_requests_are_grouped_by_what_their_start_hooks_left(make_router: MakeRouter) -> None:
    inner = Recorder()
    router = make_router(agent_kwargs={"hooks": inner})

    def same_for_all(ctx: PredictContext) -> None:
        ctx.questions, ctx.max_len = dict(URGENT), 100

    router.predict_batch([request("a"), request("b", questions=URGENT, max_len=90)], on_predict_start=same_for_all)
    assert calls_of(inner) == [["a", "b"]]


def test_a_questions_dict_mutated_in_place_reaches_every_request_that_shares_it_and_the_caller(
    make_router: MakeRouter,
) -> None:
    def mutate_at_the_last(ctx: PredictContext) -> None:
        if ctx.states == ["b"]:
            del ctx.questions["team"]  # type: ignore[attr-defined]

    shared = dict(QUESTIONS)
    results = make_router().predict_batch(
        [request("a", questions=shared), request("b", questions=shared)], on_predict_start=mutate_at_the_last
    )
    assert [list(result["answers"]) for result in results] == [["urgent"], ["urgent"]]
    assert list(shared) == ["urgent"]


def test_a_request_pinned_by_an_alias_shares_the_forward_pass_of_that_checkpoint(make_router: MakeRouter) -> None:
    def pin_the_second(ctx: PredictContext) -> None:
        if ctx.states == ["b"]:
            ctx.decision = {"model": "ml"}

    inner, hook = Recorder(), Recorder(look=lambda ctx: ctx.model)
    router = make_router(agent_kwargs={"hooks": inner})
    router.predict_batch([request("a", "multilingual"), request("b")], hooks=[At("on_route", pin_the_second), hook])
    assert calls_of(inner) == [["a", "b"]]
    assert hook.looked("on_predict_start") == ["multilingual", "multilingual"]
    assert router.loaded == ["multilingual"]


def test_a_start_hook_s_budget_overrides_the_request_s(make_router: MakeRouter) -> None:
    def override(ctx: PredictContext) -> None:
        ctx.max_len = 60

    router = make_router()
    (result,) = router.predict_batch([request(STATE * 9, max_len=100)], on_predict_start=override)
    assert_same(router.predict(STATE * 9, QUESTIONS, model="english", max_len=60), result)


def test_hits_are_left_out_of_the_forward_pass_and_carry_routing(make_router: MakeRouter) -> None:
    def skip_b(ctx: PredictContext) -> None:
        if ctx.states == ["b"]:
            ctx.skip(dict(ANSWER))

    inner = Recorder()
    router = make_router(agent_kwargs={"hooks": inner})
    results = router.predict_batch([request(state) for state in "abc"], on_predict_start=skip_b)
    assert calls_of(inner) == [["a", "c"]]
    assert results[1] == ANSWER | {"routing": router.route("b", QUESTIONS, model="english")}


def test_usage_elapsed_ms_and_gate_are_there_once_per_request_before_any_end_hook(make_router: MakeRouter) -> None:
    started: list[PredictContext] = []
    seen: list[list[tuple[bool, bool, str]]] = []

    def look(ctx: PredictContext) -> None:
        answers = [one.results[0]["answers"]["team"] for one in started]  # type: ignore[index]
        measured = [(one.elapsed_ms is not None, one.usage is not None) for one in started]
        seen.append([(*two, answer["abstention"]) for two, answer in zip(measured, answers, strict=True)])

    requests = [request(state, min_confidence=1.0) for state in "abc"]
    make_router().predict_batch(requests, on_predict_start=started.append, on_predict_end=look)
    assert seen == [[(True, True, "abstained")] * 3] * 3


def test_the_gate_of_the_call_holds_for_requests_without_one_of_their_own(make_router: MakeRouter) -> None:
    results = make_router().predict_batch([request("a"), request("b", min_confidence=0.0)], min_confidence=1.0)
    judged = [{answer["abstention"] for answer in result["answers"].values()} for result in results]
    assert judged == [{"abstained"}, {"passed"}]


def test_an_empty_batch_is_answered_with_an_empty_list(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)
    assert router.predict_batch([]) == []
    assert hook.events == []
    assert router.loaded == []


@pytest.mark.parametrize(
    ("requests", "error", "says"),
    [
        ("text", TypeError, "sequence of mappings"),
        ([request("a"), "b"], TypeError, "request 1"),
        ([{"questions": QUESTIONS}], ValueError, "request 0 has no 'state'"),
        ([request("a"), {"state": "b"}], ValueError, "request 1 has no 'questions'"),
        ([request("a", maxlen=5)], ValueError, "unknown key 'maxlen'"),
    ],
)
def test_a_malformed_request_is_refused_by_its_position_before_any_event(
    make_router: MakeRouter, requests: Any, error: type[Exception], says: str
) -> None:
    hook = Recorder()
    with pytest.raises(error, match=says):
        make_router().predict_batch(requests, hooks=hook)
    assert hook.events == []
