"""Put started requests to their Agent, alone or together, and hand each its own result.

The Router decides what is asked together and fires the events around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from laya.calls import BatchCall
from laya.context import PredictContext
from laya.grouping import Request, calibrated_language
from laya.hooks import defaults_already_fired
from laya.phases import recording
from laya.questions import check_state


def ask(ctx: PredictContext) -> None:
    """Answer one started request with its Agent: `ctx.results` becomes its result, with `routing`."""
    with defaults_already_fired(), recording(ctx.phases):
        result = _agent(ctx).system_one(_single_state(ctx), ctx.questions, **_options(ctx))
    _deliver(ctx, result)


Group = Sequence[tuple[Request, PredictContext]]
"""Started requests of one checkpoint that differ only in their states: one call of the Agent answers them."""


def ask_groups(groups: Sequence[Group], batch_size: int | None) -> None:
    """Answer started requests of one checkpoint, a call of the Agent for each group.

    With shared passes all calls are under way before one is waited for, so that groups share passes with each
    other as they do with other callers. They end in the reverse of the order they began, as requests do.
    """
    if len(groups) == 1 or any(getattr(ctx.agent, "batching", None) is None for group in groups for _, ctx in group):
        for group in groups:
            states, questions, options = _call_of(group, batch_size)
            with defaults_already_fired(), _recording(group):
                results = _agent(group[0][1]).predict_batch(states, questions, **options)
            _deliver_all(group, results)
        return
    begun: list[tuple[Group, BatchCall]] = []
    try:
        for group in groups:
            states, questions, options = _call_of(group, batch_size)
            with defaults_already_fired(), _recording(group):
                begun.append((group, _agent(group[0][1]).begin_batch(states, questions, **options)))
        while begun:
            group, call = begun.pop()
            with _recording(group):
                results = call.finish()
            _deliver_all(group, results)
    except BaseException as error:
        for _, call in reversed(begun):
            call.abandon(error)
        raise


def _recording(group: Group) -> AbstractContextManager[None]:
    """What one call of the Agent takes is a part of every request that it answers."""
    return recording(*(ctx.phases for _, ctx in group))


def _call_of(group: Group, batch_size: int | None) -> tuple[list[Any], Mapping[Any, Any], dict[str, Any]]:
    _, first = group[0]
    options = _options(first) | ({} if batch_size is None else {"batch_size": batch_size})
    return [_single_state(ctx) for _, ctx in group], first.questions, options


def _deliver_all(group: Group, results: Sequence[dict[str, Any]]) -> None:
    for (_, ctx), result in zip(group, results, strict=True):
        _deliver(ctx, result)


def add_routing(ctx: PredictContext) -> None:
    """Give a skipped result the decision that a computed one has, unless it brings its own."""
    for result in ctx.results or ():
        result.setdefault("routing", ctx.decision)


def single_result(ctx: PredictContext) -> dict[str, Any]:
    """The one result of an ended Router call.

    Raises:
        ValueError: a hook took it away.
    """
    if not ctx.results:
        raise ValueError("a hook left ctx.results empty; a Router's call answers with exactly one result")
    return ctx.results[0]


def _deliver(ctx: PredictContext, result: dict[str, Any]) -> None:
    ctx.deliver([result])
    result["routing"] = ctx.decision


def _options(ctx: PredictContext) -> dict[str, Any]:
    """The options that say something: an attached Agent need not know the others."""
    options = {"lang": calibrated_language(ctx), "max_len": ctx.max_len, "head_max_len": ctx.head_max_len}
    return {name: value for name, value in options.items() if value is not None}


def _agent(ctx: PredictContext) -> Any:
    if ctx.agent is None:
        raise ValueError(f"a hook removed ctx.agent, so nothing can answer for checkpoint {ctx.model!r}")
    return ctx.agent


def _single_state(ctx: PredictContext) -> Any:
    if len(ctx.states) != 1:
        raise ValueError(f"a hook left {len(ctx.states)} states in ctx.states; a Router's call has exactly one")
    check_state(ctx.states[0])
    return ctx.states[0]
