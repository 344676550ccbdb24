"""load, unload, attach, preload and register; on_load and on_evict: when they fire, with what, and outside any lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from laya import Agent, PredictContext, Router
from laya.hooks import add_default_hook
from tests.lifecycle.recording import DEADLINE_S, QUESTIONS, STATE, At, Recorder, raising

MakeRouter = Callable[..., Router]
MakeAgent = Callable[..., Agent]


def models(contexts: list[PredictContext]) -> list[str | None]:
    return [ctx.model for ctx in contexts]


def test_on_load_fires_when_a_checkpoint_is_built_and_not_when_it_is_resident(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)
    first = router.load("english")
    assert router.load("english") is first
    assert hook.events == ["on_load"]


def test_on_load_sees_the_name_the_agent_and_the_router(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)
    agent = router.load("en")
    (ctx,) = hook.seen("on_load")
    assert (ctx.model, ctx.agent, ctx.router) == ("english", agent, router)
    assert (ctx.states, ctx.questions, ctx.results, ctx.decision) == ([], {}, None, None)


def test_on_load_sees_a_checkpoint_that_is_already_resident(make_router: MakeRouter) -> None:
    router = make_router()
    hook = Recorder(look=lambda ctx: router.loaded)
    router.add_hook(hook)
    router.load("english")
    assert hook.looked("on_load") == [["english"]]


def test_on_evict_fires_for_the_least_recently_used_checkpoint_once_over_max_loaded(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook, max_loaded=2)
    for name in ("english", "multilingual", "english", "typed-decisions"):
        router.load(name)
    assert models(hook.seen("on_evict")) == ["multilingual"]
    assert router.loaded == ["english", "typed-decisions"]


def test_a_prediction_counts_as_use(make_router: MakeRouter) -> None:
    router = make_router(max_loaded=2)
    router.load("english")
    router.load("multilingual")
    router.predict(STATE, QUESTIONS, model="english")
    router.load("typed-decisions")
    assert router.loaded == ["english", "typed-decisions"]


def test_on_evict_sees_the_name_and_the_router_and_no_agent_because_it_is_gone(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: (ctx.model, ctx.agent, ctx.router is router, router.loaded))
    router = make_router(hooks=hook, max_loaded=1)
    router.load("english")
    router.load("multilingual")
    assert hook.looked("on_evict") == [("english", None, True, ["multilingual"])]


def test_each_event_of_a_load_has_a_context_of_its_own(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook, max_loaded=1)
    router.load("english")
    router.load("multilingual")
    assert len({id(ctx) for _, ctx in hook.contexts}) == len({ctx.run_id for _, ctx in hook.contexts}) == 3


def test_unload_fires_on_evict_and_frees_the_name(make_router: MakeRouter) -> None:
    hook = Recorder(look=lambda ctx: (ctx.model, router.loaded))
    router = make_router(hooks=hook)
    router.load("english")
    router.unload("en")
    assert hook.looked("on_evict") == [("english", [])]


def test_unload_of_what_is_not_resident_fires_nothing(make_router: MakeRouter) -> None:
    hook = Recorder()
    make_router(hooks=hook).unload("english")
    assert hook.events == []


def test_unload_without_a_name_lets_go_of_every_checkpoint_least_recently_used_first(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)
    router.preload(["english", "multilingual", "typed-decisions"])
    router.load("english")
    router.unload()
    assert models(hook.seen("on_evict")) == ["multilingual", "typed-decisions", "english"]
    assert router.loaded == []


@pytest.mark.parametrize("call", ["load", "unload"])
def test_an_unknown_name_is_refused_with_those_that_are_known(make_router: MakeRouter, call: str) -> None:
    with pytest.raises(ValueError, match=r"unknown checkpoint 'klingon'.*'english'"):
        getattr(make_router(), call)("klingon")


def test_attach_registers_an_existing_agent_and_fires_no_on_load(make_router: MakeRouter, agent: Agent) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)
    assert router.attach("mine", agent) is agent
    assert router.load("mine") is agent
    assert router.predict(STATE, QUESTIONS, model="mine")["routing"]["model"] == "mine"
    assert hook.seen("on_load") == []


def test_an_attached_agent_can_be_evicted_by_unload_and_must_then_be_attached_again(
    make_router: MakeRouter, agent: Agent
) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)
    router.attach("mine", agent)
    router.unload("mine")
    assert models(hook.seen("on_evict")) == ["mine"]
    with pytest.raises(ValueError, match="attach it again"):
        router.load("mine")


def test_preload_builds_each_checkpoint_once_and_makes_room_for_all(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook, max_loaded=1)
    assert router.preload() is router
    assert router.loaded == ["english", "multilingual", "typed-decisions"]
    assert hook.events == ["on_load"] * 3
    router.preload(["ml", "english"])
    assert hook.events == ["on_load"] * 3


@pytest.mark.parametrize(
    ("preload", "loaded"), [(True, ["english", "multilingual", "typed-decisions"]), (["ml"], ["multilingual"])]
)
def test_a_router_can_preload_when_it_is_made_and_its_hooks_see_it(
    make_router: MakeRouter, preload: Any, loaded: list[str]
) -> None:
    hook = Recorder()
    router = make_router(hooks=hook, preload=preload)
    assert router.loaded == models(hook.seen("on_load")) == loaded


def test_a_registered_name_is_loaded_from_its_source(make_router: MakeRouter, checkpoints: dict[str, str]) -> None:
    router = make_router()
    assert router.register(" Papers ", checkpoints["typed-decisions"]) == "papers"
    result = router.predict(STATE, QUESTIONS, model="PAPERS")
    assert (result["routing"]["model"], result["routing"]["repo"]) == ("papers", checkpoints["typed-decisions"])


def test_a_name_registered_anew_is_built_from_the_new_source_once_the_old_one_is_gone(
    make_router: MakeRouter, checkpoints: dict[str, str]
) -> None:
    router = make_router()
    old = router.load("english")
    router.register("english", checkpoints["multilingual"])
    assert router.load("english") is old
    router.unload("english")
    assert router.load("english").model_id == checkpoints["multilingual"]


# --- outside any lock ---


def everything(router: Router) -> None:
    """Use whatever of the Router takes one of its locks."""
    assert router.predict(STATE, QUESTIONS, model="typed-decisions")["answers"]
    router.predict_batch([{"state": STATE, "questions": QUESTIONS, "model": "typed-decisions"}])
    router.load("typed-decisions")
    router.add_hook(at := At("on_route", lambda ctx: None))
    router.remove_hook(at)
    router.register("papers", "/somewhere")
    router.route(STATE)
    assert router.loaded


@pytest.mark.parametrize("event", ["on_load", "on_evict"])
@pytest.mark.parametrize("thread", ["same thread", "another thread"])
@pytest.mark.parametrize("evict_first", [False, True])
def test_a_load_hook_may_call_back_into_the_router(
    make_router: MakeRouter, event: str, thread: str, evict_first: bool
) -> None:
    answered: list[str] = []

    def call_back(ctx: PredictContext) -> None:
        if answered:
            return
        answered.append(event)
        assert ctx.router is not None
        if thread == "same thread":
            everything(ctx.router)
        else:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(everything, ctx.router).result(DEADLINE_S)

    router = make_router(max_loaded=2, evict_first=evict_first)
    router.load("english")
    router.load("typed-decisions")
    router.add_hook(At(event, call_back))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(router.load, "multilingual").result(DEADLINE_S)
    assert answered == [event]


@pytest.mark.parametrize("evict_first", [False, True])
def test_an_unload_hook_may_load_the_checkpoint_again(make_router: MakeRouter, evict_first: bool) -> None:
    router = make_router(evict_first=evict_first)

    def again(ctx: PredictContext) -> None:
        assert ctx.router is not None
        ctx.router.load(ctx.model or "")

    router.load("english")
    with router.hooks_installed(At("on_evict", again)):
        router.unload("english")
    assert router.loaded == ["english"]


def test_default_and_installed_hooks_hear_of_a_load_and_the_hooks_of_the_call_do_not(make_router: MakeRouter) -> None:
    default, installed, per_call = Recorder(), Recorder(), Recorder()
    add_default_hook(default)
    router = make_router(hooks=installed, max_loaded=1)
    router.load("multilingual")
    router.predict(STATE, QUESTIONS, model="english", hooks=per_call)
    for hook in (default, installed):
        assert models(hook.seen("on_load")) == ["multilingual", "english"]
        assert models(hook.seen("on_evict")) == ["multilingual"]
    assert not {"on_load", "on_evict"} & set(per_call.events)


def test_a_load_hook_that_raises_fails_the_call_that_needed_the_checkpoint_after_all_hooks_have_heard(
    make_router: MakeRouter,
) -> None:
    hook, per_call = Recorder(), Recorder()
    router = make_router(hooks=[At("on_evict", raising(OSError("registry"))), hook], max_loaded=1)
    router.load("multilingual")
    with pytest.raises(OSError, match="registry"):
        router.predict(STATE, QUESTIONS, model="english", hooks=per_call)
    assert hook.events == ["on_load", "on_route", "on_evict", "on_load", "on_error", "on_predict_end"]
    assert router.loaded == ["english"], "the checkpoint was built, whatever its hooks made of it"
    assert per_call.events == ["on_route", "on_error", "on_predict_end"]


def test_a_load_hook_fails_open_under_a_router_that_says_so(make_router: MakeRouter) -> None:
    router = make_router(hooks=At("on_load", raising(OSError("registry"))), hooks_raise=False)
    with pytest.warns(RuntimeWarning, match="registry"):
        assert router.predict(STATE, QUESTIONS)["answers"]


# --- many threads ---


def test_any_number_of_threads_that_want_one_checkpoint_cause_one_build(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)
    barrier = threading.Barrier(16)

    def want(_: int) -> Agent:
        barrier.wait(DEADLINE_S)
        router.predict(STATE, QUESTIONS, model="english")
        agent: Agent = router.load("english")
        return agent

    with ThreadPoolExecutor(16) as pool:
        agents = list(pool.map(want, range(16)))
    assert len(set(map(id, agents))) == 1
    assert models(hook.seen("on_load")) == ["english"]


def test_a_checkpoint_evicted_while_its_load_hook_runs_is_still_the_hook_s_agent(make_router: MakeRouter) -> None:
    agents: dict[str | None, Any] = {}

    def displace(ctx: PredictContext) -> None:
        if ctx.model == "english":
            assert ctx.router is not None
            ctx.router.load("multilingual")
            assert ctx.router.loaded == ["multilingual"]
        agents[ctx.model] = ctx.agent

    router = make_router(max_loaded=1, hooks=[At("on_load", displace)])
    evicted = router.load("english")
    assert agents["english"] is evicted
    assert agents["multilingual"] is router.load("multilingual")


def test_an_evicted_checkpoint_answers_the_calls_that_still_use_it(make_router: MakeRouter) -> None:
    router = make_router(max_loaded=1)
    want = router.predict(STATE, QUESTIONS, model="english")
    got = router.predict(STATE, QUESTIONS, model="english", on_predict_start=lambda ctx: router.load("multilingual"))
    assert got == want
    assert router.loaded == ["multilingual"]
