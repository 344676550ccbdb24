"""What a cache needs of the lifecycle: the results as they were computed, the batch, and who calls from inside whom."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from laya import Agent, BaseHook, PredictContext, Router
from tests.lifecycle.recording import ANSWER, QUESTIONS, STATE


class Listener(BaseHook):
    """Keeps a copy of what each call computed, and the contexts."""

    def __init__(self) -> None:
        self.computed: list[list[dict[str, Any]]] = []
        self.contexts: list[PredictContext] = []

    def on_predict_start(self, ctx: PredictContext) -> None:
        self.contexts.append(ctx)
        ctx.when_computed(self.keep)

    def keep(self, ctx: PredictContext, results: list[dict[str, Any]]) -> None:
        assert ctx in self.contexts
        self.computed.append(copy.deepcopy(results))


class Rewrite(BaseHook):
    def on_predict_end(self, ctx: PredictContext) -> None:
        ctx.results = [copy.deepcopy(ANSWER)]


def test_a_listener_is_told_what_was_computed_before_gate_routing_and_end_hooks(
    make_router: Callable[..., Router], agent: Agent
) -> None:
    plain = agent.predict(STATE, QUESTIONS)
    listener = Listener()
    router = make_router(hooks=[Rewrite(), listener])
    answer = router.predict(STATE, QUESTIONS, model="multilingual", min_confidence=0.9)
    router.predict_batch([{"state": STATE, "questions": QUESTIONS, "model": "multilingual"}], min_confidence=0.9)
    agent.predict(STATE, QUESTIONS, min_confidence=0.9, hooks=listener)
    assert listener.computed == [[plain]] * 3
    assert answer["answers"] == ANSWER["answers"]


def test_a_listener_hears_nothing_of_a_skip_or_a_failure(make_router: Callable[..., Router]) -> None:
    listener = Listener()
    router = make_router(hooks=listener)
    router.predict(STATE, QUESTIONS, on_predict_start=lambda ctx: ctx.skip(copy.deepcopy(ANSWER)))
    try:
        router.predict(STATE, {"bad": {"type": "noul"}}, model="multilingual")
    except ValueError:
        pass
    else:
        raise AssertionError("a question without instructions was answered")
    assert len(listener.contexts) == 2
    assert listener.computed == []


def test_requests_of_a_batch_know_each_other_by_checkpoint_and_others_are_in_none(
    make_router: Callable[..., Router],
) -> None:
    listener = Listener()
    router = make_router(hooks=listener)
    requests = [
        {"state": f"{place}", "questions": QUESTIONS, "model": model}
        for place, model in enumerate(("english", "multilingual", "english"))
    ]
    router.predict_batch(requests)
    router.predict(STATE, QUESTIONS, model="english")
    batches = [ctx.batch for ctx in listener.contexts]
    assert [None if batch is None else [one.state for one in batch.requests] for batch in batches] == [
        ["0", "2"],
        ["0", "2"],
        ["1"],
        None,
    ]
    assert batches[0] is batches[1]


def test_calls_that_hooks_make_belong_to_the_call_around_them(make_router: Callable[..., Router]) -> None:
    listener, inner = Listener(), Listener()
    router = make_router(hooks=listener)

    def ask_again(ctx: PredictContext) -> None:
        if ctx.states[0] == "outer":
            router.predict("inner", QUESTIONS, model="multilingual", hooks=inner)

    router.predict("outer", QUESTIONS, model="english", on_predict_start=ask_again)
    router.predict("other", QUESTIONS, model="english")
    ids = {ctx.states[0]: ctx.call_id for ctx in listener.contexts}
    assert ids["outer"] == ids["inner"] != ids["other"]
    assert None not in ids.values()


def test_the_agent_s_call_inside_a_router_s_is_the_same_call(make_agent: Callable[..., Agent]) -> None:
    inside, outside = Listener(), Listener()
    agent = make_agent(hooks=inside)
    router = Router(hooks=outside)
    router.attach("mine", agent)
    router.predict(STATE, QUESTIONS, model="mine")
    agent.predict(STATE, QUESTIONS)
    (around,), (within, alone) = outside.contexts, inside.contexts
    assert around.call_id == within.call_id != alone.call_id
    assert alone.call_id is not None
