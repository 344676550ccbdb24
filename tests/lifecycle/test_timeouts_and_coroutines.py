"""hooks_timeout, coroutine hooks and AsyncHook: each call is bounded, waited for, and sees the caller's context."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from laya import Agent, AsyncHook, BaseHook, PredictContext, Router
from tests.lifecycle.recording import DEADLINE_S, QUESTIONS, STATE, At, Recorder

MakeRouter = Callable[..., Router]
SHORT_S = 0.05

current: ContextVar[str] = ContextVar("current", default="nothing")


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """What a hook that takes too long waits for, so that its thread ends with the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in another thread, as a web server's would."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(DEADLINE_S)
    loop.close()


class Waits(BaseHook):
    """Reaches its limit at one event."""

    def __init__(self, event: str, let_go: threading.Event) -> None:
        setattr(self, event, lambda ctx: let_go.wait(DEADLINE_S))


class Coroutines:
    """Every event a coroutine that really gives up control."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.loops: list[asyncio.AbstractEventLoop] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        async def event(ctx: PredictContext) -> None:
            await asyncio.sleep(0.001)
            self.events.append(name)
            self.loops.append(asyncio.get_running_loop())

        return event


# --- timeouts ---


def test_a_hook_that_takes_longer_is_a_timeout_error_that_names_it(agent: Agent, let_go: threading.Event) -> None:
    with pytest.raises(TimeoutError, match=r"Waits\.on_predict_start took longer than hooks_timeout=0\.05 s"):
        agent.predict(STATE, QUESTIONS, hooks=Waits("on_predict_start", let_go), hooks_timeout=SHORT_S)


def test_a_timeout_is_a_failure_like_any_other(agent: Agent, let_go: threading.Event) -> None:
    hook = Recorder(look=lambda ctx: type(ctx.error))
    with pytest.raises(TimeoutError):
        agent.predict(STATE, QUESTIONS, hooks=[hook, Waits("on_predict_start", let_go)], hooks_timeout=SHORT_S)
    assert hook.looks[1:] == [("on_error", TimeoutError), ("on_predict_end", TimeoutError)]


def test_with_hooks_raise_false_a_timeout_warns_and_the_call_goes_on(agent: Agent, let_go: threading.Event) -> None:
    slow = Waits("on_predict_start", let_go)
    with pytest.warns(RuntimeWarning, match="took longer than hooks_timeout"):
        assert agent.predict(STATE, QUESTIONS, hooks=slow, hooks_timeout=SHORT_S, hooks_raise=False)


@pytest.mark.parametrize("event", ["on_error", "on_predict_end"])
def test_a_timeout_on_the_error_path_hides_nothing(agent: Agent, event: str, let_go: threading.Event) -> None:
    after = Recorder()
    with pytest.raises(ValueError, match="question"):
        agent.predict(STATE, {"q": {}}, hooks=[Waits(event, let_go), after], hooks_timeout=SHORT_S)
    assert after.events == ["on_predict_start", "on_error", "on_predict_end"]


def test_the_limit_is_for_each_hook_call_and_not_for_their_sum(agent: Agent) -> None:
    slow = [At("on_predict_start", lambda ctx: threading.Event().wait(0.5)) for _ in range(5)]
    assert agent.predict(STATE, QUESTIONS, hooks=slow, hooks_timeout=2.0)


def test_the_limit_holds_for_on_route_and_on_load_too(make_router: MakeRouter, let_go: threading.Event) -> None:
    for event in ("on_route", "on_load"):
        with pytest.raises(TimeoutError, match=event):
            make_router(hooks=Waits(event, let_go), hooks_timeout=SHORT_S).predict(STATE, QUESTIONS)


def test_the_call_s_limit_goes_before_the_installed_one(make_router: MakeRouter) -> None:
    slow = At("on_predict_start", lambda ctx: threading.Event().wait(3 * SHORT_S))
    router = make_router(hooks=slow, hooks_timeout=SHORT_S)
    assert router.predict(STATE, QUESTIONS, hooks_timeout=DEADLINE_S)["answers"]


def test_a_timed_hook_changes_the_call_as_an_untimed_one_does(agent: Agent) -> None:
    def rewrite(ctx: PredictContext) -> None:
        ctx.states = ["rewritten"]

    timed = agent.predict(STATE, QUESTIONS, on_predict_start=rewrite, hooks_timeout=DEADLINE_S)
    assert timed == agent.predict("rewritten", QUESTIONS)


def test_the_error_of_a_timed_hook_is_raised_as_it_is(agent: Agent) -> None:
    error = PermissionError("no")

    def refuse(ctx: PredictContext) -> None:
        raise error

    with pytest.raises(PermissionError) as caught:
        agent.predict(STATE, QUESTIONS, on_predict_start=refuse, hooks_timeout=DEADLINE_S)
    assert caught.value is error


def test_a_timeout_error_of_the_hook_s_own_is_not_taken_for_ours(agent: Agent) -> None:
    def own(ctx: PredictContext) -> None:
        raise TimeoutError("the database did not answer")

    with pytest.raises(TimeoutError, match="database"):
        agent.predict(STATE, QUESTIONS, on_predict_start=own, hooks_timeout=DEADLINE_S)


def test_a_timed_hook_sees_a_copy_of_the_caller_s_contextvars(agent: Agent) -> None:
    seen: list[str] = []

    def look(ctx: PredictContext) -> None:
        seen.append(current.get())
        current.set("the hook's")

    token = current.set("the caller's")
    try:
        agent.predict(STATE, QUESTIONS, on_predict_start=look, hooks_timeout=DEADLINE_S)
        assert seen == ["the caller's"]
        assert current.get() == "the caller's"
    finally:
        current.reset(token)


def test_an_untimed_hook_runs_in_the_caller_s_thread_and_context(agent: Agent) -> None:
    threads: list[int] = []

    def open_it(ctx: PredictContext) -> None:
        threads.append(threading.get_ident())
        tokens.append(current.set("the hook's"))

    def close_it(ctx: PredictContext) -> None:
        assert current.get() == "the hook's"
        current.reset(tokens.pop())

    tokens: list[Any] = []
    agent.predict(STATE, QUESTIONS, on_predict_start=open_it, on_predict_end=close_it)
    assert threads == [threading.get_ident()]
    assert current.get() == "nothing"


def test_a_timed_hook_of_a_router_call_can_make_a_call_with_default_hooks(agent: Agent) -> None:
    def nested(ctx: PredictContext) -> None:
        if ctx.states == [STATE]:
            ctx.skip(agent.predict("nested", QUESTIONS))

    timed = agent.predict(STATE, QUESTIONS, on_predict_start=nested, hooks_timeout=DEADLINE_S)
    assert timed == agent.predict("nested", QUESTIONS)


# --- coroutines ---


def test_coroutine_methods_are_run_to_completion_from_plain_code(make_router: MakeRouter) -> None:
    hook = Coroutines()
    router = make_router(hooks=hook, max_loaded=1)
    router.load("multilingual")
    with pytest.raises(ValueError, match="question"):
        router.predict(STATE, {"q": {}}, model="english")
    assert hook.events == [
        "on_load",
        "on_route",
        "on_evict",
        "on_load",
        "on_predict_start",
        "on_error",
        "on_predict_end",
    ]


def test_coroutine_methods_are_run_to_completion_inside_a_running_loop(agent: Agent) -> None:
    hook = Coroutines()

    async def serve() -> Any:
        return agent.predict(STATE, QUESTIONS, hooks=hook), asyncio.get_running_loop()

    result, own_loop = asyncio.run(serve())
    assert result == agent.predict(STATE, QUESTIONS)
    assert hook.events == ["on_predict_start", "on_predict_end"]
    assert own_loop not in hook.loops, "the caller's loop is blocked by the call and cannot run the hook"


def test_a_coroutine_hook_may_rewrite_and_skip(agent: Agent) -> None:
    async def skip(ctx: PredictContext) -> None:
        await asyncio.sleep(0)
        ctx.skip({"answers": {"cached": True}})

    assert agent.predict(STATE, QUESTIONS, on_predict_start=skip) == {"answers": {"cached": True}}


@pytest.mark.parametrize("inside", ["plain code", "a running loop"])
def test_the_error_of_a_coroutine_hook_is_the_hook_s_error(agent: Agent, inside: str) -> None:
    async def refuse(ctx: PredictContext) -> None:
        await asyncio.sleep(0)
        raise PermissionError("no")

    async def serve() -> None:
        agent.predict(STATE, QUESTIONS, on_predict_start=refuse)

    with pytest.raises(PermissionError, match="no"):
        asyncio.run(serve()) if inside == "a running loop" else agent.predict(STATE, QUESTIONS, on_predict_start=refuse)


@pytest.mark.parametrize("timeout", [None, DEADLINE_S])
@pytest.mark.parametrize("inside", ["plain code", "a running loop"])
def test_a_coroutine_hook_sees_the_caller_s_contextvars(agent: Agent, timeout: float | None, inside: str) -> None:
    seen: list[str] = []

    async def look(ctx: PredictContext) -> None:
        seen.append(current.get())

    def call() -> None:
        token = current.set("the caller's")
        agent.predict(STATE, QUESTIONS, on_predict_start=look, hooks_timeout=timeout)
        current.reset(token)

    async def serve() -> None:
        call()

    asyncio.run(serve()) if inside == "a running loop" else call()
    assert seen == ["the caller's"]


@pytest.mark.parametrize("inside", ["plain code", "a running loop"])
def test_a_coroutine_hook_is_cancelled_at_its_limit(agent: Agent, inside: str) -> None:
    ended = threading.Event()

    async def too_long(ctx: PredictContext) -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        finally:
            ended.set()

    def call() -> None:
        agent.predict(STATE, QUESTIONS, on_predict_start=too_long, hooks_timeout=SHORT_S)

    async def serve() -> None:
        call()

    with pytest.raises(TimeoutError, match=r"too_long\.on_predict_start took longer than hooks_timeout=0\.05 s"):
        asyncio.run(serve()) if inside == "a running loop" else call()
    assert ended.wait(DEADLINE_S / 2)


# --- AsyncHook ---


def test_async_hook_runs_a_coroutine_hook_without_a_loop(agent: Agent) -> None:
    hook = Coroutines()
    agent.predict(STATE, QUESTIONS, hooks=AsyncHook(hook))
    assert hook.events == ["on_predict_start", "on_predict_end"]


def test_async_hook_runs_a_coroutine_hook_on_the_loop_that_it_was_given(
    make_router: MakeRouter, loop: asyncio.AbstractEventLoop
) -> None:
    hook = Coroutines()
    make_router(hooks=AsyncHook(hook, loop=loop)).predict(STATE, QUESTIONS)
    assert hook.events == ["on_route", "on_load", "on_predict_start", "on_predict_end"]
    assert set(hook.loops) == {loop}


def test_async_hook_forwards_plain_methods_and_passes_over_missing_ones(agent: Agent) -> None:
    seen: list[str] = []
    agent.predict(STATE, QUESTIONS, hooks=AsyncHook(At("on_predict_end", lambda ctx: seen.append("end"))))
    assert seen == ["end"]


def test_async_hook_on_a_loop_is_bounded_by_hooks_timeout(agent: Agent, loop: asyncio.AbstractEventLoop) -> None:
    async def too_long(ctx: PredictContext) -> None:
        await asyncio.wait_for(never.wait(), DEADLINE_S)

    never = asyncio.Event()
    hook = AsyncHook(At("on_predict_start", too_long), loop)
    try:
        with pytest.raises(TimeoutError, match="AsyncHook"):
            agent.predict(STATE, QUESTIONS, hooks=hook, hooks_timeout=SHORT_S)
    finally:
        loop.call_soon_threadsafe(never.set)


def test_async_hook_refuses_the_loop_of_the_calling_thread_which_would_wait_for_itself(agent: Agent) -> None:
    async def serve() -> None:
        hook = AsyncHook(Coroutines(), loop=asyncio.get_running_loop())
        agent.predict(STATE, QUESTIONS, hooks=hook)

    with pytest.raises(RuntimeError, match="wait for itself"):
        asyncio.run(serve())


def test_async_hook_with_a_web_server_s_loop_works_from_a_thread_of_it(agent: Agent) -> None:
    hook = Coroutines()

    async def serve() -> None:
        on_this_loop = AsyncHook(hook, loop=asyncio.get_running_loop())
        await asyncio.to_thread(agent.predict, STATE, QUESTIONS, hooks=on_this_loop)
        assert set(hook.loops) == {asyncio.get_running_loop()}

    asyncio.run(serve())
    assert hook.events == ["on_predict_start", "on_predict_end"]


def test_async_hook_refuses_a_loop_that_does_not_run(agent: Agent) -> None:
    stopped = asyncio.new_event_loop()
    try:
        with pytest.raises(RuntimeError, match="does not run"):
            agent.predict(STATE, QUESTIONS, hooks=AsyncHook(Coroutines(), loop=stopped))
    finally:
        stopped.close()


def test_async_hook_gives_up_on_a_loop_that_stops_before_its_coroutine_has_ended(agent: Agent) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def stop(ctx: PredictContext) -> None:
        loop.stop()
        await asyncio.sleep(DEADLINE_S)

    try:
        with pytest.raises(RuntimeError, match="stopped before"):
            agent.predict(STATE, QUESTIONS, hooks=AsyncHook(At("on_predict_start", stop), loop))
    finally:
        thread.join(DEADLINE_S)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_async_hook_takes_the_raise_errors_of_the_hook_inside(agent: Agent) -> None:
    class Telemetry(BaseHook):
        raise_errors = False

        async def on_predict_start(self, ctx: PredictContext) -> None:
            raise ConnectionError("down")

    with pytest.warns(RuntimeWarning, match="down"):
        assert agent.predict(STATE, QUESTIONS, hooks=AsyncHook(Telemetry()))
