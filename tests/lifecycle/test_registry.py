"""What a hook is, how hooks are installed and taken back, and the process-wide defaults."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from laya import Agent, AsyncHook, BaseHook, Hook, PredictContext, Router
from laya.hooks import (
    HOOK_EVENTS,
    HookRegistry,
    add_default_hook,
    clear_default_hooks,
    default_hooks,
    set_default_hooks,
)
from tests.lifecycle.recording import DEADLINE_S, QUESTIONS, STATE, At, Recorder

MakeRouter = Callable[..., Router]
MakeAgent = Callable[..., Agent]


@pytest.fixture(params=["agent", "router"])
def registry(request: pytest.FixtureRequest, make_agent: MakeAgent, make_router: MakeRouter) -> Any:
    """An Agent and a Router: the same registry stands in both."""
    return make_agent() if request.param == "agent" else make_router()


# --- what a hook is ---


@pytest.mark.parametrize("event", HOOK_EVENTS)
def test_an_object_with_any_one_of_the_six_events_is_a_hook(agent: Agent, event: str) -> None:
    agent.predict(STATE, QUESTIONS, hooks=At(event, lambda ctx: None))


def wrong_hooks() -> dict[str, Any]:
    class NotCallable:
        on_predict_start = "a text"

    return {
        "a class": Recorder,
        "a class in a list": [Recorder],
        "a function": lambda ctx: None,
        "a function in a list": [lambda ctx: None],
        "an object without events": object(),
        "an event that is not callable": NotCallable(),
        "None in a list": [None],
        "a text": "on_predict_start",
        "an int": 7,
    }


@pytest.mark.parametrize("wrong", wrong_hooks().values(), ids=wrong_hooks().keys())
def test_anything_else_is_a_type_error_wherever_hooks_are_given(
    agent: Agent, make_router: MakeRouter, wrong: Any
) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)
    for give in (
        lambda: agent.predict(STATE, QUESTIONS, hooks=wrong),
        lambda: agent.predict_batch([STATE], QUESTIONS, hooks=wrong),
        lambda: router.predict(STATE, QUESTIONS, hooks=wrong),
        lambda: router.predict_batch([], hooks=wrong),
        lambda: router.route(STATE, hooks=wrong),
        lambda: router.route_batch([], hooks=wrong),
        lambda: make_router(hooks=wrong),
        lambda: router.add_hook(wrong),
        lambda: set_default_hooks(wrong),
        lambda: add_default_hook(wrong),
        lambda: AsyncHook(wrong),
    ):
        with pytest.raises(TypeError):
            give()
    assert hook.events == []
    assert (router.hooks, default_hooks()) == ([hook], [])


@pytest.mark.parametrize("argument", ["on_predict_start", "on_predict_end"])
def test_what_is_given_as_a_function_must_be_callable(agent: Agent, argument: str) -> None:
    options: dict[str, Any] = {argument: 7}
    with pytest.raises(TypeError, match=f"{argument}= takes a callable"):
        agent.predict(STATE, QUESTIONS, **options)


@pytest.mark.parametrize("sequence", [list, tuple, deque])
def test_hooks_takes_one_hook_or_a_sequence(agent: Agent, sequence: Any) -> None:
    one, two = Recorder(), Recorder()
    agent.predict(STATE, QUESTIONS, hooks=one)
    agent.predict(STATE, QUESTIONS, hooks=sequence([one, two]))
    assert (len(one.events), len(two.events)) == (4, 2)


def test_a_hook_that_is_itself_a_sequence_is_one_hook(agent: Agent) -> None:
    class Journal(list[str]):
        def on_predict_end(self, ctx: PredictContext) -> None:
            self.append(ctx.run_id)

    journal = Journal()
    agent.predict(STATE, QUESTIONS, hooks=journal)
    assert len(journal) == 1


def test_a_base_hook_does_nothing_at_every_event(make_router: MakeRouter) -> None:
    router = make_router(hooks=BaseHook(), max_loaded=1)
    want = router.predict(STATE, QUESTIONS, model="english")
    router.load("multilingual")
    assert router.predict(STATE, QUESTIONS, model="english") == want
    assert isinstance(BaseHook(), Hook)
    ctx = PredictContext([], {})
    assert [getattr(BaseHook(), event)(ctx) for event in HOOK_EVENTS] == [None] * len(HOOK_EVENTS)


def test_contexts_are_compared_and_hashed_by_identity() -> None:
    one, other = (
        PredictContext([], {}, run_id="same", started_at=1.0),
        PredictContext([], {}, run_id="same", started_at=1.0),
    )
    assert one != other
    assert len({one, other}) == 2


# --- installing and taking back ---


def test_add_hook_installs_after_the_others_and_chains(registry: Any) -> None:
    one, two = Recorder(), Recorder()
    assert registry.add_hook(one).add_hook(two) is registry
    assert registry.hooks == [one, two]


def test_remove_hook_goes_by_identity_and_says_whether_the_hook_was_there(registry: Any) -> None:
    class Equal(BaseHook):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            return 7

    installed, equal = Equal(), Equal()
    registry.add_hook(installed)
    assert registry.remove_hook(equal) is False
    assert registry.hooks[0] is installed
    assert registry.remove_hook(installed) is True
    assert registry.hooks == []
    assert registry.remove_hook(installed) is False


def test_hooks_installed_takes_back_exactly_what_it_put_in(registry: Any) -> None:
    before, within, other = Recorder(), Recorder(), Recorder()
    registry.add_hook(before)
    with registry.hooks_installed(within) as inside:
        assert inside is registry
        assert registry.hooks == [before, within]
        registry.add_hook(other)
    assert registry.hooks == [before, other]


def test_hooks_installed_takes_them_back_when_its_block_fails(registry: Any) -> None:
    with pytest.raises(KeyboardInterrupt), registry.hooks_installed(Recorder()):
        raise KeyboardInterrupt
    assert registry.hooks == []


def test_nested_blocks_with_the_same_hook_take_back_one_installation_each(registry: Any) -> None:
    hook = Recorder()
    registry.add_hook(hook)
    with registry.hooks_installed(hook, hook):
        with registry.hooks_installed(hook):
            assert registry.hooks == [hook] * 4
        assert registry.hooks == [hook] * 3
    assert registry.hooks == [hook]


def test_a_hook_removed_within_its_block_is_not_missed_at_the_end(registry: Any) -> None:
    hook = Recorder()
    with registry.hooks_installed(hook):
        registry.remove_hook(hook)
    assert registry.hooks == []


def test_a_refused_hook_installs_none_of_its_block(registry: Any) -> None:
    with pytest.raises(TypeError), registry.hooks_installed(Recorder(), object()):
        pass  # pragma: no cover - not reached
    assert registry.hooks == []


def test_a_hook_installed_twice_runs_twice(agent: Agent) -> None:
    hook = Recorder()
    with agent.hooks_installed(hook, hook):
        agent.predict(STATE, QUESTIONS)
    assert hook.events == ["on_predict_start"] * 2 + ["on_predict_end"] * 2


def test_hooks_changed_during_a_call_count_from_the_next_call_on(make_agent: MakeAgent) -> None:
    agent, late, removed = make_agent(), Recorder(), Recorder()

    def change(ctx: PredictContext) -> None:
        agent.add_hook(late)
        agent.remove_hook(removed)

    agent.add_hook(removed)
    agent.predict(STATE, QUESTIONS, on_predict_start=change)
    assert (late.events, removed.events) == ([], ["on_predict_start", "on_predict_end"])
    agent.predict(STATE, QUESTIONS)
    assert (late.events, len(removed.events)) == (["on_predict_start", "on_predict_end"], 2)


def test_many_threads_may_install_and_remove_at_once(registry: Any) -> None:
    barrier = threading.Barrier(16)
    kept = [Recorder(str(n)) for n in range(16)]

    def change(n: int) -> None:
        barrier.wait(DEADLINE_S)
        for _ in range(20):
            with registry.hooks_installed(Recorder()):
                pass
        registry.add_hook(kept[n])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(change, range(16)))
    assert sorted(hook.name for hook in registry.hooks) == sorted(hook.name for hook in kept)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, False, "1", [1]])
def test_hooks_timeout_must_be_a_positive_finite_number(agent: Agent, make_router: MakeRouter, timeout: Any) -> None:
    router = make_router()
    for give in (
        lambda: agent.predict(STATE, QUESTIONS, hooks_timeout=timeout),
        lambda: agent.predict_batch([STATE], QUESTIONS, hooks_timeout=timeout),
        lambda: router.predict(STATE, QUESTIONS, hooks_timeout=timeout),
        lambda: router.predict_batch([], hooks_timeout=timeout),
        lambda: router.route(STATE, hooks_timeout=timeout),
        lambda: make_router(hooks_timeout=timeout),
        lambda: HookRegistry(hooks_timeout=timeout),
    ):
        with pytest.raises(ValueError, match="hooks_timeout"):
            give()


# --- defaults ---


def test_default_hooks_gives_a_copy(agent: Agent) -> None:
    hook = Recorder()
    add_default_hook(hook)
    default_hooks().clear()
    assert default_hooks() == [hook]


def test_set_replaces_add_appends_and_clear_empties_the_defaults() -> None:
    one, two, three = Recorder(), Recorder(), Recorder()
    set_default_hooks([one])
    set_default_hooks(two)
    add_default_hook(three)
    assert default_hooks() == [two, three]
    clear_default_hooks()
    assert default_hooks() == []


def test_default_hooks_fire_once_for_a_router_call(make_router: MakeRouter) -> None:
    hook = Recorder()
    add_default_hook(hook)
    make_router().predict(STATE, QUESTIONS)
    assert hook.events == ["on_route", "on_load", "on_predict_start", "on_predict_end"]
    assert hook.seen("on_predict_start")[0].router is not None


def test_default_hooks_fire_once_per_request_of_a_batch(make_router: MakeRouter) -> None:
    hook = Recorder()
    add_default_hook(hook)
    make_router().predict_batch([{"state": state, "questions": QUESTIONS, "model": "english"} for state in "abc"])
    assert hook.events[3:] == ["on_load", *["on_predict_start"] * 3, *["on_predict_end"] * 3]


def test_default_hooks_fire_once_for_an_attached_agent_whose_own_hooks_run_as_well(
    make_router: MakeRouter, make_agent: MakeAgent
) -> None:
    default, own = Recorder(), Recorder()
    add_default_hook(default)
    router = make_router()
    router.attach("english", make_agent("english", hooks=own))
    router.predict(STATE, QUESTIONS, model="english")
    assert default.events == ["on_route", "on_predict_start", "on_predict_end"]
    assert own.events == ["on_predict_start", "on_predict_end"]


def test_default_hooks_fire_for_an_agent_that_is_called_by_itself(make_router: MakeRouter) -> None:
    router, hook = make_router(), Recorder()
    agent = router.load("english")
    router.predict(STATE, QUESTIONS, model="english")
    add_default_hook(hook)
    agent.predict(STATE, QUESTIONS)
    assert hook.events == ["on_predict_start", "on_predict_end"]


def test_a_default_hook_that_fails_is_not_fired_again_by_the_agent_inside(make_router: MakeRouter) -> None:
    hook = Recorder()
    add_default_hook(hook)
    with pytest.raises(ValueError, match="question"):
        make_router().predict(STATE, {"q": {}})
    assert hook.events == ["on_route", "on_load", "on_predict_start", "on_error", "on_predict_end"]


# --- calls that hooks make themselves ---


@pytest.mark.parametrize("level", ["router", "agent"])
def test_a_call_that_a_hook_makes_is_a_call_of_its_own_with_default_hooks(
    make_router: MakeRouter, make_agent: MakeAgent, level: str
) -> None:
    other, seen = make_agent(), Recorder()

    class AskAnother(BaseHook):
        def on_predict_start(self, ctx: PredictContext) -> None:
            other.predict("nested", QUESTIONS)

    add_default_hook(seen)
    where = {"hooks": AskAnother()} if level == "router" else {"agent_kwargs": {"hooks": AskAnother()}}
    make_router(**where).predict(STATE, QUESTIONS, model="english")
    states = [ctx.states[0] for ctx in seen.seen("on_predict_start")]
    assert sorted(states) == sorted([STATE, "nested"])
    assert len(seen.seen("on_predict_end")) == 2


def test_a_hook_may_call_the_object_that_fired_it(agent: Agent) -> None:
    contexts: list[PredictContext] = []

    class Twice(BaseHook):
        def on_predict_start(self, ctx: PredictContext) -> None:
            contexts.append(ctx)
            if ctx.states == [STATE]:
                ctx.skip(agent.predict("nested", QUESTIONS, hooks=self))

    with agent.hooks_installed(hook := Recorder()):
        assert agent.predict(STATE, QUESTIONS, hooks=Twice()) == agent.predict("nested", QUESTIONS)
    assert len({ctx.run_id for ctx in contexts}) == 2
    assert hook.events[:4] == ["on_predict_start", "on_predict_start", "on_predict_end", "on_predict_end"]
