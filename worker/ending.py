"""A worker that is asked to end twice ends now: what it works on goes back to the queue, for others.

The first SIGTERM (or Ctrl-C) lets running work finish, which with threads is the only orderly way. Celery hears no
second one, and its way of cancelling cannot stop a thread either. Other ends are the pool's matter.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from celery import bootsteps, signals

EXIT_UNFINISHED: Final = 1
"""With which a worker ends that was asked twice, and had not finished."""

GIVE_BACK_S: Final = 5.0
"""Seconds that giving back may take: the broker may be away."""


class EndingStep(bootsteps.Step):  # type: ignore[misc] # celery has no types
    """Waits for the first signal, and then listens to the second."""

    requires = ("worker.watchdog_step:WatchdogStep",)

    def create(self, parent: Any) -> None:
        """Listen once the worker has begun to end."""
        signals.worker_shutting_down.connect(
            lambda **_: listen(parent.watchdog.give_back), sender=parent.hostname, weak=False
        )


def listen(give_back: Callable[[], None]) -> None:
    """At the next SIGTERM or SIGINT give everything back and end; at one more, just end."""

    def second(_number: int, _frame: FrameType | None) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(EXIT_UNFINISHED))
        print("laya: asked twice: what is not finished goes back to the queue", file=sys.__stderr__, flush=True)
        # Not in the handler: it may have interrupted the very thread that talks to the broker.
        giving = threading.Thread(target=give_back, name="laya-giving-back", daemon=True)
        giving.start()
        threading.Thread(target=_end_after, args=(giving,), name="laya-ending", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, second)


def _end_after(giving: threading.Thread) -> None:
    giving.join(GIVE_BACK_S)
    os._exit(EXIT_UNFINISHED)
