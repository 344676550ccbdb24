"""The ordering rules, each for every event that can show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laya import Agent, Router
from laya.hooks import HOOK_EVENTS, add_default_hook, set_default_hooks
from tests.lifecycle.recording import QUESTIONS, STATE, At, Recorder, raising

Log = list[tuple[str, str]]
ROUTER_CALL = ["on_route", "on_predict_start", "on_predict_end"]


def names(log: Log, event: str) -> list[str]:
    return [name for name, each in log if each == event]


def test_defaults_run_before_installed_and_installed_before_per_call_hooks_always(
    make_router: Callable[..., Router],
) -> None:
    log: Log = []
    router = make_router(max_loaded=1)
    router.load("multilingual")
    router.add_hook(Recorder("A", log)).add_hook(Recorder("B", log))
    add_default_hook(Recorder("D", log))  # added last, runs first all the same
    with pytest.raises(ValueError, match="question"):
        router.predict(STATE, {"q": {}}, model="english", hooks=Recorder("C", log))
    for event in ("on_route", "on_predict_start", "on_error", "on_predict_end"):
        assert names(log, event) == ["D", "A", "B", "C"]
    for event in ("on_evict", "on_load"):
        assert names(log, event) == ["D", "A", "B"], "a checkpoint comes and goes for every caller, not for one"


def test_within_a_list_hooks_run_in_list_order(agent: Agent) -> None:
    log: Log = []
    set_default_hooks([Recorder("D1", log), Recorder("D2", log)])
    with agent.hooks_installed(Recorder("A", log), Recorder("B", log)):
        agent.predict(STATE, QUESTIONS, hooks=(Recorder("C1", log), Recorder("C2", log)))
    for event in ("on_predict_start", "on_predict_end"):
        assert names(log, event) == ["D1", "D2", "A", "B", "C1", "C2"]


def test_for_one_event_every_hook_runs_before_the_next_event(make_router: Callable[..., Router]) -> None:
    log: Log = []
    router = make_router(hooks=[Recorder("A", log), Recorder("B", log)], max_loaded=1)
    router.load("multilingual")
    log.clear()
    with pytest.raises(ValueError, match="question"):
        router.predict(STATE, {"q": {}}, model="english")
    events = [event for _, event in log]
    assert events == [event for each in HOOK_EVENTS_AS_MET for event in (each, each)]


HOOK_EVENTS_AS_MET = ["on_route", "on_evict", "on_load", "on_predict_start", "on_error", "on_predict_end"]


def test_every_event_is_among_those_that_one_call_can_meet() -> None:
    assert set(HOOK_EVENTS_AS_MET) == set(HOOK_EVENTS)


def test_a_hook_that_does_not_implement_an_event_is_passed_over(agent: Agent) -> None:
    log: Log = []
    only_end = At("on_predict_end", lambda ctx: log.append(("E", "on_predict_end")))
    agent.predict(STATE, QUESTIONS, hooks=[only_end, Recorder("R", log)])
    assert log == [("R", "on_predict_start"), ("E", "on_predict_end"), ("R", "on_predict_end")]


def test_the_functions_of_a_call_run_after_its_hooks(agent: Agent) -> None:
    seen: list[str] = []
    agent.predict(
        STATE,
        QUESTIONS,
        on_predict_start=[lambda ctx: seen.append("function 1"), lambda ctx: seen.append("function 2")],
        hooks=At("on_predict_start", lambda ctx: seen.append("hook")),
    )
    assert seen == ["hook", "function 1", "function 2"]


def test_the_functions_installed_with_an_agent_run_after_its_hooks_and_before_the_call_s(
    make_agent: Callable[..., Agent],
) -> None:
    seen: list[str] = []
    agent = make_agent(
        on_predict_start=lambda ctx: seen.append("installed function"),
        on_predict_end=lambda ctx: seen.append("end"),
        hooks=At("on_predict_start", lambda ctx: seen.append("installed hook")),
    )
    agent.predict(STATE, QUESTIONS, hooks=At("on_predict_start", lambda ctx: seen.append("call")))
    assert seen == ["installed hook", "installed function", "call", "end"]


def test_on_error_runs_before_on_predict_end_on_the_failure_path(agent: Agent) -> None:
    log: Log = []
    hooks = [Recorder("A", log), At("on_predict_start", raising(PermissionError())), Recorder("B", log)]
    with pytest.raises(PermissionError):
        agent.predict(STATE, QUESTIONS, hooks=hooks)
    assert log[1:] == [("A", "on_error"), ("B", "on_error"), ("A", "on_predict_end"), ("B", "on_predict_end")]


def test_on_evict_runs_before_on_load_when_one_load_both_evicts_and_builds(make_router: Callable[..., Router]) -> None:
    hook = Recorder(look=lambda ctx: ctx.model)
    router = make_router(max_loaded=1, hooks=hook)
    router.load("english")
    router.load("multilingual")
    assert hook.looks == [("on_load", "english"), ("on_evict", "english"), ("on_load", "multilingual")]
