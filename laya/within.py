"""A context variable that has another value within a block: what a generator does with `contextlib`, at a third."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Generic, TypeVar

T = TypeVar("T")


class within(Generic[T]):  # noqa: N801 - used as a function is
    """Give `variable` this value for a block. For one block only."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        """See the class."""
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        """Begin the block."""
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        """End it: the variable has the value that it had."""
        self._variable.reset(self._token)
