"""A first level of a cache in this process' memory, bounded by bytes and short-lived; off unless it is asked for.

An answer never changes, so that nothing here can be wrong; what was cleared on the server lives on here for some
seconds.
"""

from __future__ import annotations

import threading
from typing import Final

from cachetools import TTLCache

SECONDS: Final = 10.0
"""How long an answer is kept here."""

ENTRY_BYTES: Final = 300
"""What one entry takes beside its text: its name, its place in the order, the objects around them."""


class LocalLevel:
    """Texts by name. Safe to use from many threads."""

    def __init__(self, size: int) -> None:
        """Keep at most `size` bytes; 0 keeps nothing."""
        self._lock = threading.Lock()
        self._texts: TTLCache[str, bytes] | None = (
            TTLCache(size, SECONDS, getsizeof=lambda text: len(text) + ENTRY_BYTES) if size else None
        )

    def get(self, name: str) -> bytes | None:
        """The text of that name, if it is here."""
        if self._texts is None:
            return None
        with self._lock:
            return self._texts.get(name)

    def put(self, name: str, text: bytes) -> None:
        """Keep a text that is not larger than all the room there is."""
        if self._texts is None or len(text) + ENTRY_BYTES > self._texts.maxsize:
            return
        with self._lock:
            self._texts[name] = text

    def drop(self, name: str) -> None:
        """Forget a text."""
        if self._texts is not None:
            with self._lock:
                self._texts.pop(name, None)
