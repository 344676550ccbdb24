"""Ctrl-C, SIGTERM and SIGHUP as a question that a foreground command asks where it can safely stop.

An exception raised by a signal could come between a process's start and the note that it was started. Here the first
signal is only remembered; the second says that the person does not want to wait.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STEP = 0.05
"""Seconds between two looks while waiting."""


class Stopped(Exception):
    """Somebody asked this process to stop."""


class Interrupts:
    """Remembers the first signal; a context manager that puts the old handlers back. For the main thread."""

    def __init__(
        self, at_once: Callable[[], None], heard: Callable[[signal.Signals], None] = lambda _number: None
    ) -> None:
        """Take what to do at the second signal, before KeyboardInterrupt is raised, and what to say at the first."""
        self._at_once, self._heard = at_once, heard
        self._before: dict[signal.Signals, Any] = {}
        self.received: signal.Signals | None = None
        self._twice = False

    def __enter__(self) -> Self:
        """Install the handlers."""
        self._before = {number: signal.signal(number, self._remember) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the old handlers back. An error that the second signal has led to is not what the person did."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._twice and isinstance(error, Exception):
            raise KeyboardInterrupt from None

    def check(self) -> None:
        """Raise `Stopped` if a signal has come."""
        if self.received is not None:
            raise Stopped(self.received.name)

    def wait(self, seconds: float) -> None:
        """Sleep, or raise `Stopped` soon after a signal."""
        end = time.monotonic() + seconds
        self.check()
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(STEP, left))
            self.check()

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self._twice = True
            self._at_once()
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        self._heard(self.received)
