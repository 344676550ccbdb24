"""Requests of a batch: what one may hold, which checkpoint it belongs to, and which of them share a forward pass.

Pure functions of the requests; the Router fires the events between them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from laya.confidence import check_min_confidence
from laya.context import Batch, PredictContext
from laya.routing import LangGuess


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One request to a Router, as the caller made it; hooks change its context instead."""

    state: Any
    questions: Mapping[Any, Any]
    model: str | None = None
    task: str | None = None
    lang: str | None = None
    lang_guess: LangGuess | None = None
    max_len: int | None = None
    head_max_len: int | None = None
    min_confidence: float | Mapping[str, float] | None = None


REQUEST_KEYS = frozenset(field.name for field in fields(Request))
"""What a request may hold."""


def check_requests(requests: Any, min_confidence: Any = None) -> list[Request]:
    """The requests of a batch; those without a `min_confidence` of their own get the call's.

    Raises:
        TypeError: not a sequence of mappings.
        ValueError: a request without `state` or `questions`, or with a key that is not known; named by its position.
    """
    if isinstance(requests, str | bytes | Mapping) or not isinstance(requests, Iterable):
        raise TypeError(f"requests must be a sequence of mappings, got {type(requests).__name__}")
    return [_check_request(place, request, min_confidence) for place, request in enumerate(requests)]


def _check_request(place: int, request: Any, min_confidence: Any) -> Request:
    if not isinstance(request, Mapping):
        raise TypeError(f"request {place} must be a mapping, got {type(request).__name__}")
    for key in ("state", "questions"):
        if key not in request:
            raise ValueError(f"request {place} has no {key!r}")
    unknown = [key for key in request if key not in REQUEST_KEYS]
    if unknown:
        raise ValueError(
            f"request {place} has an unknown key {unknown[0]!r}; expected {', '.join(sorted(REQUEST_KEYS))}"
        )
    own = request.get("min_confidence")
    check_min_confidence(own)
    return Request(**{**request, "min_confidence": min_confidence if own is None else own})


def context_of(
    request: Request,
    router: Any,
    run_id: str,
    decision: Mapping[str, Any] | None = None,
    model: str | None = None,
    batch: Batch | None = None,
) -> PredictContext:
    """The context of one request to `router`; what of its decision, checkpoint and batch is known already."""
    return PredictContext(
        states=[request.state],
        questions=request.questions,
        run_id=run_id,
        decision=decision,
        model=model,
        router=router,
        lang=request.lang,
        max_len=request.max_len,
        head_max_len=request.head_max_len,
        batch=batch,
    )


def by_checkpoint(models: Sequence[str | None]) -> list[list[int]]:
    """Positions of the requests of each checkpoint, checkpoints in order of first appearance."""
    groups: dict[str | None, list[int]] = {}
    for place, model in enumerate(models):
        groups.setdefault(model, []).append(place)
    return list(groups.values())


def by_pass(
    requests: Iterable[tuple[Request, PredictContext]],
) -> list[list[tuple[Request, PredictContext]]]:
    """Groups of started requests that one call of the Agent can answer, in order of first appearance.

    They ask the same questions in the same order under the same budgets. Read after the start hooks, which may have
    changed any of it. Languages are told apart only where the checkpoint has temperatures of its own for them.
    """
    groups: dict[Hashable, list[tuple[Request, PredictContext]]] = {}
    for request, ctx in requests:
        budgets = _frozen(ctx.max_len), _frozen(ctx.head_max_len)
        key = (_frozen(ctx.questions), *budgets, id(ctx.agent), calibrated_language(ctx))
        groups.setdefault(key, []).append((request, ctx))
    return list(groups.values())


def calibrated_language(ctx: PredictContext) -> str | None:
    """The call's language where it makes a difference to the context's Agent, else None."""
    of_agent = getattr(ctx.agent, "calibrated_language", None)
    return of_agent(ctx.lang) if of_agent is not None and ctx.lang is not None else None


def _frozen(value: Any) -> Hashable:
    """A hashable stand-in: equal for values that mean the same to a checkpoint, order and type included."""
    if type(value) is str:
        return value  # nothing else has a text for its stand-in
    if isinstance(value, dict | Mapping):
        parts: list[Hashable] = ["mapping"]
        for key, entry in value.items():
            parts += (_frozen(key), _frozen(entry))
        return tuple(parts)
    if isinstance(value, list | tuple):
        return ("list", *[_frozen(entry) for entry in value])
    if value is None or isinstance(value, str | int | float | bool):
        return (type(value).__name__, value)  # the type, because 1, 1.0 and True are one key to a dict
    return ("object", id(value))
