"""The time for what must not go wrong with this machine's clock: the broker's server tells it with every heartbeat.

A clock can be set while a worker runs, by an hour and in both directions. How long something has taken is measured by
`time.monotonic`; this module is for times that others wrote down, which are deadlines, and for times that are shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_STARTED: Final = time.time() - time.monotonic()


def steady() -> float:
    """Unix time as this machine had it when the process began, carried on by a clock that nobody sets."""
    return _STARTED + time.monotonic()


class ServerClock:
    """This machine's clock beside the server's."""

    def __init__(self, wall: Callable[[], float] = time.time, passed: Callable[[], float] = time.monotonic) -> None:
        """Know nothing of the server's yet.

        Args:
            wall: this machine's clock, in Unix time.
            passed: seconds on a clock that nobody sets.
        """
        self._wall, self._passed = wall, passed
        self._apart: float | None = None

    def heard(self, at: float) -> None:
        """The server has just said that it is `at`, in Unix time."""
        self._apart = at - self._passed()

    @property
    def ahead(self) -> float | None:
        """Seconds that this machine's clock is ahead of the server's; None as long as that is not known."""
        return None if self._apart is None else self._wall() - self._passed() - self._apart

    def now(self) -> float:
        """The Unix time by which a deadline is judged: of both clocks the one that is behind.

        Where one of them is wrong, a request is rather answered in vain than refused while somebody waits for it.
        """
        return self._wall() - max(0.0, self.ahead or 0.0)


clock: Final = ServerClock()
"""This process's."""
