"""Many threads on one Agent and on one Router: contexts never mixed, answers those of one thread, hooks in turn."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from laya import Agent, BaseHook, PredictContext, Router
from laya.batching import Batching
from tests.lifecycle.recording import DEADLINE_S, QUESTIONS, STATE, At, Recorder, assert_same, watch

MakeRouter = Callable[..., Router]
MakeAgent = Callable[..., Agent]

THREADS = 32
ROUNDS = 3

EACH_WAY_OF_PASSES = pytest.mark.parametrize("batching", [None, Batching()], ids=["own passes", "shared passes"])


class Witness(BaseHook):
    """Checks at every event that a context has met this thread's call and no other's."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[int, Any]] = {}
        self.mixed: list[str] = []

    def on_predict_start(self, ctx: PredictContext) -> None:
        self.calls[ctx.run_id] = (threading.get_ident(), ctx.states[0])

    def on_predict_end(self, ctx: PredictContext) -> None:
        if self.calls.get(ctx.run_id) != (threading.get_ident(), ctx.states[0]) or ctx.error is not None:
            self.mixed.append(ctx.run_id)


def variations(count: int) -> list[dict[str, Any]]:
    """Calls that differ in state, questions and budgets; the budgets make a shared tokenizer change its settings."""
    calls = []
    for n in range(count):
        questions = QUESTIONS if n % 3 else {"urgent": QUESTIONS["urgent"]}
        calls.append({"state": f"{STATE} {n} " * (1 + n % 7), "questions": questions, "max_len": 60 + 8 * (n % 5)})
    return calls


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    barrier = threading.Barrier(THREADS)

    def at_once(n: int) -> Any:
        barrier.wait(DEADLINE_S)
        return work(n)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(at_once, range(THREADS)))


@EACH_WAY_OF_PASSES
def test_32_threads_on_one_agent_get_the_answers_of_one_thread_and_contexts_never_mix(
    make_agent: MakeAgent, batching: Batching | None
) -> None:
    witness = Witness()
    agent = make_agent(hooks=witness, batching=batching)
    calls = variations(THREADS)
    want = [agent.predict(**call) for call in calls]
    for _ in range(ROUNDS):
        got = in_threads(lambda n: agent.predict(**calls[n]))
        for one, other in zip(want, got, strict=True):
            assert_same(one, other)
    assert witness.mixed == []
    assert len(witness.calls) == THREADS * (ROUNDS + 1)


@EACH_WAY_OF_PASSES
def test_32_threads_on_one_router_get_the_answers_of_one_thread_and_contexts_never_mix(
    make_router: MakeRouter, batching: Batching | None
) -> None:
    witness = Witness()
    router = make_router(hooks=witness, max_loaded=3, agent_kwargs={"batching": batching})
    names = ["english", "multilingual", "typed-decisions"]
    calls = [call | {"model": names[n % 3]} for n, call in enumerate(variations(THREADS))]
    want = [router.predict(**call) for call in calls]
    router.unload()
    for _ in range(ROUNDS):
        got = in_threads(lambda n: router.predict(**calls[n]))
        for one, other in zip(want, got, strict=True):
            assert_same(one, other)
    assert witness.mixed == []


def test_32_threads_with_batches_on_a_router_that_must_evict_get_the_answers_of_one_thread(
    make_router: MakeRouter,
) -> None:
    witness = Witness()
    router = make_router(hooks=witness, max_loaded=1)
    names = ["english", "multilingual"]
    calls = [call | {"model": names[n % 2]} for n, call in enumerate(variations(8))]
    want = router.predict_batch(calls)
    for got in in_threads(lambda n: router.predict_batch(calls)):
        assert_same(want, got)
    assert witness.mixed == []
    assert len(router.loaded) == 1


def test_one_thread_s_failure_is_no_other_thread_s(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(hooks=hook)

    def work(n: int) -> str:
        if n % 2:
            return str(router.predict(STATE, QUESTIONS, model="english")["model"])
        with pytest.raises(ValueError, match=f"question 'q{n}'"):
            router.predict(STATE, {f"q{n}": {}}, model="english")
        return "refused"

    assert in_threads(work) == ["refused", "laya-rl-agent"] * (THREADS // 2)
    errors = [ctx.error for ctx in hook.seen("on_error")]
    assert len(errors) == THREADS // 2
    for ctx in hook.seen("on_error"):
        assert next(iter(ctx.questions)) in str(ctx.error)


# --- hooks_concurrent ---


class Overlap:
    """Measures how many calls are inside at the same time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.most = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1

    def hook(self, event: str = "on_predict_start") -> At:
        def method(ctx: PredictContext) -> None:
            with self.counted():
                threading.Event().wait(0.002)  # room for another to come in, were it let in

        return At(event, method)


def test_hooks_run_in_parallel_by_default(make_agent: MakeAgent) -> None:
    together = threading.Barrier(2)
    agent = make_agent(hooks=At("on_predict_start", lambda ctx: together.wait(DEADLINE_S)))
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(lambda n: agent.predict(STATE, QUESTIONS), range(2)))


@pytest.mark.parametrize("timeout", [None, DEADLINE_S])
def test_hooks_concurrent_false_lets_one_hook_in_at_a_time(make_agent: MakeAgent, timeout: float | None) -> None:
    overlap = Overlap()
    hooks = [overlap.hook(), overlap.hook("on_predict_end")]
    agent = make_agent(hooks=hooks, hooks_concurrent=False, hooks_timeout=timeout)
    in_threads(lambda n: agent.predict(STATE, QUESTIONS, hooks=overlap.hook()))
    assert overlap.most == 1


def test_hooks_concurrent_false_holds_for_the_hooks_of_a_router_too(make_router: MakeRouter) -> None:
    overlap = Overlap()
    hooks = [overlap.hook(event) for event in ("on_route", "on_predict_start", "on_predict_end")]
    router = make_router(hooks=hooks, hooks_concurrent=False)
    in_threads(lambda n: router.predict(STATE, QUESTIONS, model="english"))
    assert overlap.most == 1


def test_hooks_concurrent_false_serialises_invocations_and_not_whole_calls(make_agent: MakeAgent) -> None:
    agent = make_agent(hooks=(hook := Recorder()), hooks_concurrent=False)
    kind = watch(agent)
    in_forward, others_done = threading.Event(), threading.Event()

    def hold_the_first() -> None:
        if not in_forward.is_set():
            in_forward.set()
            assert others_done.wait(DEADLINE_S)

    kind.before_forward = hold_the_first
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(agent.predict, "first", QUESTIONS)
        assert in_forward.wait(DEADLINE_S)
        agent.predict("second", QUESTIONS)
        others_done.set()
        first.result(DEADLINE_S)
    order = [(ctx.states[0], event) for event, ctx in hook.contexts]
    assert order == [
        ("first", "on_predict_start"),
        ("second", "on_predict_start"),
        ("second", "on_predict_end"),
        ("first", "on_predict_end"),
    ]


@pytest.mark.parametrize("timeout", [None, DEADLINE_S])
@pytest.mark.parametrize("which", ["agent", "router"])
def test_the_lock_is_re_entrant_so_that_a_hook_may_call_back(
    make_agent: MakeAgent, make_router: MakeRouter, which: str, timeout: float | None
) -> None:
    options = {"hooks_concurrent": False, "hooks_timeout": timeout}
    target: Any = make_agent(**options) if which == "agent" else make_router(**options)
    nested: list[Any] = []

    def call_back(ctx: PredictContext) -> None:
        if ctx.states == [STATE]:
            nested.append(target.predict("nested", QUESTIONS))

    target.add_hook(At("on_predict_start", call_back)).add_hook(At("on_predict_end", call_back))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(target.predict, STATE, QUESTIONS).result(DEADLINE_S)
    assert nested == [target.predict("nested", QUESTIONS)] * 2


def test_the_lock_is_re_entrant_for_a_coroutine_hook_in_a_loop_of_its_own(make_agent: MakeAgent) -> None:
    agent = make_agent(hooks_concurrent=False, hooks=(hook := Recorder()))

    async def call_back(ctx: PredictContext) -> None:
        agent.predict("nested", QUESTIONS)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(agent.predict, STATE, QUESTIONS, on_predict_start=call_back).result(DEADLINE_S)
    assert [ctx.states[0] for ctx in hook.seen("on_predict_end")] == ["nested", STATE]


def test_a_turn_that_a_hook_left_behind_in_a_thread_opens_nothing(make_agent: MakeAgent) -> None:
    """The thread has a copy of the hook's context, but the hook's turn is over when it calls."""
    overlap, over = Overlap(), threading.Event()
    left: list[threading.Thread] = []
    agent = make_agent(hooks_concurrent=False)

    def later() -> None:
        assert over.wait(DEADLINE_S)
        agent.predict("later", QUESTIONS, hooks=[overlap.hook() for _ in range(20)])

    def leave_behind(ctx: PredictContext) -> None:
        left.append(threading.Thread(target=contextvars.copy_context().run, args=(later,)))
        left[0].start()

    agent.predict(STATE, QUESTIONS, on_predict_start=leave_behind)
    over.set()
    agent.predict(STATE, QUESTIONS, hooks=[overlap.hook() for _ in range(20)])
    left[0].join(DEADLINE_S)
    assert overlap.most == 1


def test_waiting_for_a_turn_counts_against_the_limit(make_agent: MakeAgent) -> None:
    agent = make_agent(hooks_concurrent=False)
    inside, let_go = threading.Event(), threading.Event()

    def hold(ctx: PredictContext) -> None:
        inside.set()
        let_go.wait(DEADLINE_S)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(agent.predict, STATE, QUESTIONS, on_predict_start=hold)
        try:
            assert inside.wait(DEADLINE_S)
            with pytest.raises(TimeoutError, match=r"hooks_timeout=0\.05"):
                agent.predict(STATE, QUESTIONS, on_predict_start=lambda ctx: None, hooks_timeout=0.05)
        finally:
            let_go.set()
        assert holding.result(DEADLINE_S)
