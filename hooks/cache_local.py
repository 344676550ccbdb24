"""A first level of a cache in this process' memory, bounded by bytes and short-lived.

What is here was read for its key, so that it needs no second look: a copy is all that a hit costs. An answer never
changes, so that nothing here can be wrong; what was cleared on the server lives on here for some seconds.
"""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable
from typing import Any, Final

from laya.lru import LruCache

SECONDS: Final = 5.0
"""How long an answer is kept here."""

ENTRY_BYTES: Final = 300
"""What one entry takes beside its content: its name, its place in the order, the objects around them."""


class LocalLevel:
    """Results by the names of their entries. Safe to use from many threads."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Keep at most `size` bytes; 0 keeps nothing."""
        self._clock = clock
        # When it is over, and the result as marshal writes it: a copy of one takes a third of reading its JSON.
        self._results: LruCache[str, tuple[float, bytes]] | None = LruCache(size) if size else None

    def has(self, name: str) -> bool:
        """Whether the result of that name is here."""
        return self._content(name) is not None

    def get(self, name: str) -> dict[str, Any] | None:
        """The result of that name, if it is here: a new object each time."""
        content = self._content(name)
        if content is None:
            return None
        result: dict[str, Any] = marshal.loads(content)  # noqa: S302 - this process wrote it
        return result

    def put(self, name: str, result: dict[str, Any]) -> None:
        """Keep a result as JSON has it, if it is not larger than all the room there is."""
        if self._results is not None:
            content = marshal.dumps(result)
            self._results.put(name, (self._clock() + SECONDS, content), len(content) + ENTRY_BYTES)

    def _content(self, name: str) -> bytes | None:
        kept = None if self._results is None else self._results.get(name)
        return None if kept is None or self._clock() >= kept[0] else kept[1]
