"""When to leave something alone that does not answer: after failures in a row, for some seconds, then one at a time.

Knows nothing of what is tried. A change of state is one line in the log, without any text of what failed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

CLOSED: Final = "closed"
"""All is well: everything is tried."""

OPEN: Final = "open"
"""Nothing is tried until the pause is over."""

HALF_OPEN: Final = "half-open"
"""The pause is over and one probe is under way; nothing else is tried."""


class Breaker:
    """A circuit breaker. Safe to use from many threads."""

    def __init__(self, what: str, failures: int, pause: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Open after this many `failures` in a row, for `pause` seconds; `what` is named in the log."""
        self._what, self._limit, self._pause, self._clock = what, failures, pause, clock
        self._lock = threading.Lock()
        self._state = CLOSED
        self._failures = 0
        self._until = 0.0

    @property
    def state(self) -> str:
        """One of `closed`, `open`, `half-open`."""
        return self._state

    def allows(self) -> bool:
        """Whether to try now; after a True the caller says `succeeded` or `failed`.

        A probe that says neither is forgotten after the pause.
        """
        if self._state == CLOSED:
            return True
        with self._lock:
            if self._state == CLOSED:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._state, self._until = HALF_OPEN, now + self._pause
            return True

    def succeeded(self) -> None:
        """What was tried worked."""
        if self._state == CLOSED and not self._failures:
            return
        with self._lock:
            self._failures = 0
            # A try from before the failures may end late; only the probe closes.
            if self._state != HALF_OPEN:
                return
            self._state = CLOSED
        logger.info("%s works again", self._what)

    def failed(self, reason: str) -> None:
        """What was tried did not work; `reason` is a word or two for the log."""
        with self._lock:
            self._failures += 1
            if self._state == OPEN or (self._state == CLOSED and self._failures < self._limit):
                return
            opened = self._state == CLOSED
            self._state, self._until = OPEN, self._clock() + self._pause
        if opened:
            logger.warning(
                "%s does not work (%s): predictions go on without it, and it is tried again every %g s",
                self._what,
                reason,
                self._pause,
            )
