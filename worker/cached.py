"""What the skip cache makes of a request on this worker's settings: for a person who asks why something was no hit.

The same routing, identity and key as a worker's, without loading a checkpoint. Hooks are not run: one that stands
before the cache and rewrites requests changes the key, and is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery.app.control import Control

from hooks.cache_key import CacheKey, Place, make_key
from hooks.scope import Scope
from laya.identity import CheckpointIdentity
from producer.errors import CheckpointUnavailable, InvalidRequest
from producer.jsonform import JsonForm
from producer.request import PredictionRequest, route
from producer.request_checks import check
from worker.serving_router import ServingRouter
from worker.settings import WorkerSettings

CACHE = "hooks.SkipCache"


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The key of a request.

    Attributes:
        key: the names under which its answer lies.
        checkpoint, reason: where it is routed, and why.
        identity: what that checkpoint is on this machine.
        hooks_before: hooks of LAYA_HOOKS that run before the cache and may rewrite requests.
    """

    key: CacheKey
    checkpoint: str
    reason: str
    identity: CheckpointIdentity
    hooks_before: tuple[str, ...]


def key_of(settings: WorkerSettings, request: PredictionRequest, scope: Scope) -> RequestKey:
    """The key that a worker with these settings gives a request, as long as nothing is resident.

    Raises:
        LayaError: the request cannot be asked; its checkpoint is not on this machine; JSON cannot express it.
    """
    checked = check(request, JsonForm(settings.limits))
    decision = route(checked, settings.names, settings.default_checkpoint)
    checkpoint = decision["model"]
    identity = ServingRouter(settings.model_copy(update={"hooks": ()})).identity(checkpoint)
    if identity is None:
        raise CheckpointUnavailable(
            f"checkpoint {checkpoint!r} is not on this machine as a worker would load it, so its answers have no key "
            "here: `laya-workers checkpoints` shows what is",
            {"checkpoint": checkpoint},
        )
    key = make_key(
        Place(settings.namespace, scope.namespace, checkpoint),
        identity,
        checked.state,
        checked.questions,
        lang=checked.options.get("lang"),
        max_len=checked.options.get("max_len"),
        head_max_len=checked.options.get("head_max_len"),
    )
    if key is None:
        raise InvalidRequest("the request has no key: the cache leaves it alone")
    return RequestKey(key, checkpoint, str(decision["reason"]), identity, hooks_before(settings.hooks))


def hooks_before(hooks: Sequence[str]) -> tuple[str, ...]:
    """The hooks that see a request before the cache does."""
    return tuple(hooks[: hooks.index(CACHE)]) if CACHE in hooks else ()


def figures_of_workers(control: Control, timeout: float) -> dict[str, dict[str, Any]]:
    """What the caches of the workers that answer within `timeout` seconds have counted, by node name."""
    answers: list[dict[str, Any]] = control.broadcast("cache", reply=True, timeout=timeout) or []
    return {node: facts for answer in answers for node, facts in sorted(answer.items()) if facts}
