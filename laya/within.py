"""A context variable that has another value within a block.

`contextlib.contextmanager` would do, at three times the cost, and every request goes through several such blocks.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Generic, TypeVar

T = TypeVar("T")


class within(Generic[T]):  # noqa: N801 - used as a function is
    """Give `variable` this value for one block; an instance is not used again."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        """Change nothing yet."""
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        """Set the value."""
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        """Give the variable back the value that it had."""
        self._variable.reset(self._token)
