"""How a worker ends that is asked to: in order, or at once if it is still starting or is asked twice.

The first SIGTERM or Ctrl-C, which are the same here, lets running work finish, which with threads is the only orderly
way. Celery hears no second one, and its way of cancelling cannot stop a thread either: what a worker works on then goes
back to the queue, for others. Other ends are the pool's matter.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from celery import bootsteps, signals
from celery.exceptions import WorkerShutdown
from celery.worker import state

EXIT_UNFINISHED: Final = 1
"""With which a worker ends that was asked twice, and had not finished."""

GIVE_BACK_S: Final = 5.0
"""Seconds that giving back may take: the broker may be away."""


class EndingStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Hears the first signal, and listens to the second from then on."""

    def create(self, parent: Any) -> None:
        """Listen once the worker has begun to end."""
        signals.worker_shutting_down.connect(lambda **_: begin(parent), sender=parent.hostname, weak=False)

    def start(self, _parent: Any) -> None:
        """Take Ctrl-C as SIGTERM, which Celery makes a failure of, with an exit code that says so."""
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))


def begin(worker: Any) -> None:
    """The first signal has come.

    Raises:
        WorkerShutdown: the worker is loading, which Celery would let go on to its end.
    """
    if (end_now := getattr(worker, "end_now", None)) is not None:
        end_now()  # the second one came before anybody listened to it
        return
    worker.end_now = listen(lambda: _give_back(worker))
    if worker.blueprint.started < len(worker.steps):
        _say("asked to end before it has started: nothing was taken")
        if getattr(worker, "breaks_off", False):
            raise WorkerShutdown(os.EX_OK)


@contextlib.contextmanager
def breaking_off(worker: Any) -> Iterator[None]:
    """Let the first signal end this part of a worker's start, wherever it is.

    Not for imports: a library in C++ whose import is interrupted may abort the process.

    Raises:
        WorkerShutdown: a signal has come, here or before.
    """
    worker.breaks_off = True
    try:
        state.maybe_shutdown()
        yield
    finally:
        worker.breaks_off = False


def listen(give_back: Callable[[], None]) -> Callable[[], None]:
    """At the next SIGTERM or SIGINT give everything back and end; at one more, just end. Returns what the next does."""

    def end_now() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(EXIT_UNFINISHED))
        _say("asked twice: what is not finished goes back to the queue")
        # Not in the handler: it may have interrupted the very thread that talks to the broker.
        giving = threading.Thread(target=give_back, name="laya-giving-back", daemon=True)
        giving.start()
        threading.Thread(target=_end_after, args=(giving,), name="laya-ending", daemon=True).start()

    def second(_number: int, _frame: FrameType | None) -> None:
        end_now()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, second)
    return end_now


def _give_back(worker: Any) -> None:
    watchdog = getattr(worker, "watchdog", None)  # none before it is started
    if watchdog is not None:
        watchdog.give_back()


def _say(what: str) -> None:
    """Not to the log, nor to a buffer: a signal's handler may have interrupted whoever holds its lock."""
    with contextlib.suppress(OSError):
        os.write(2, f"laya: {what}\n".encode())


def _end_after(giving: threading.Thread) -> None:
    giving.join(GIVE_BACK_S)
    os._exit(EXIT_UNFINISHED)
