"""A bounded cache that many threads share: what was used longest ago goes first."""

from __future__ import annotations

import marshal
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Without references to objects, which would tell equal values apart.
_MARSHAL: Final = 2


def content_of(value: Any) -> bytes:
    """What a value made of plain ones is known by: equal for those of equal content, types and order, and no others.

    `marshal.loads` makes the value of it again. Empty for one that has other parts, or nests too deeply.
    """
    try:
        return marshal.dumps(value, _MARSHAL)
    except (TypeError, ValueError):
        return b""


class LruCache(Generic[K, V]):
    """Keeps values up to a total weight. An entry that alone exceeds the capacity is not kept."""

    def __init__(self, capacity: int) -> None:
        """Start empty; `capacity` bounds the sum of the weights of all entries."""
        self.capacity = capacity
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value kept under `key`, which is thereby the most recently used, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Keep a value in place of what the key had, and let go of the oldest until all fit."""
        with self._lock:
            self._weight -= self._entries.pop(key, (None, 0))[1]
            if weight > self.capacity:  # the others would go before it
                return
            self._entries[key] = (value, weight)
            self._weight += weight
            while self._weight > self.capacity:
                _, (_, freed) = self._entries.popitem(last=False)
                self._weight -= freed

    def __len__(self) -> int:
        """How many entries are kept."""
        with self._lock:
            return len(self._entries)
