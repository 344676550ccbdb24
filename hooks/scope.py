"""What a hook must know of a request that the library does not: whose it is, and whether its answer may be kept.

Whoever calls the library says it for the calls of one block; a hook asks for it. Nothing here decides anything.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from laya.within import within


@dataclass(frozen=True, slots=True)
class Scope:
    """The facts of a request beside its states and questions.

    Attributes:
        namespace: the tenant whose request it is, None for the deployment's own.
        store: whether its answer may be read from a cache and kept in one.
        task_id: the id of the task that carries it, None outside of one.
    """

    namespace: str | None = None
    store: bool = True
    task_id: str | None = None


_current: ContextVar[Scope] = ContextVar("laya_scope", default=Scope())  # noqa: B039 - frozen


def current() -> Scope:
    """The facts of the call that is being answered here."""
    return _current.get()


def asking(scope: Scope) -> within[Scope]:
    """Say the facts for the calls of a block."""
    return within(_current, scope)
