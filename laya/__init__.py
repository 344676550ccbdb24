"""Typed decisions about a state: choice, score and yes/no questions, answered in one forward pass with calibrated odds.

`Agent` is one checkpoint, `Router` chooses among several and keeps some in memory, hooks see every call. Importing this
package imports no torch: what needs it is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from laya.catalog import DEFAULT_MODELS
from laya.context import PredictContext
from laya.hooks import AsyncHook, BaseHook, Hook
from laya.router import Router
from laya.routing import RouteDecision

if TYPE_CHECKING:
    from laya.agent import Agent, load

__all__ = [
    "DEFAULT_MODELS",
    "Agent",
    "AsyncHook",
    "BaseHook",
    "Hook",
    "PredictContext",
    "RouteDecision",
    "Router",
    "load",
]

_NEEDS_TORCH = {"Agent": "laya.agent", "load": "laya.agent"}


def __getattr__(name: str) -> Any:
    """Import `Agent` and `load`, and torch with them, when they are first asked for."""
    if name in _NEEDS_TORCH:
        return getattr(import_module(_NEEDS_TORCH[name]), name)
    raise AttributeError(f"module 'laya' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, those not yet imported included."""
    return sorted(__all__)
