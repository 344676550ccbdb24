"""Which worker answered which task, and how long it worked on it, as Celery's own events tell.

Events are a side channel: they may come late or, after a reconnect, not at all, so nothing may depend on them that must
be right. Answers come from the result store.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from celery import Celery
from kombu.exceptions import OperationalError

RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Finish:
    """A task that a worker has finished: `worker` is the node's name before the @, `seconds` its time on the task."""

    task: str
    worker: str
    seconds: float | None


class TaskWatch:
    """Collects the ends of tasks from a broker's events, in a thread; a context manager."""

    def __init__(self, app: Celery) -> None:
        """Watch the broker of `app`."""
        self._app = app
        self._receiver: Any = None
        self._stopping = False
        self._finishes: queue.SimpleQueue[Finish] = queue.SimpleQueue()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="task events", daemon=True)

    def __enter__(self) -> Self:
        """Start listening; returns once the broker delivers events to us."""
        self._thread.start()
        self._listening.wait(timeout=10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        self._stopping = True
        if self._receiver is not None:
            self._receiver.should_stop = True
        self._thread.join(timeout=5)

    def next(self, timeout: float) -> Finish | None:
        """The next end of a task, or None if there is none within `timeout` seconds."""
        try:
            return self._finishes.get(timeout=timeout)
        except queue.Empty:
            return None

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._listen()
            except (OSError, OperationalError):
                time.sleep(RETRY_SECONDS)

    def _listen(self) -> None:
        handlers = {"task-succeeded": self._note, "task-failed": self._note}
        with self._app.connection_for_read() as connection:
            self._receiver = self._app.events.Receiver(connection, handlers=handlers)
            self._receiver.should_stop = self._stopping
            self._receiver.on_consume_ready = lambda *_, **__: self._listening.set()
            self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def _note(self, event: dict[str, Any]) -> None:
        self._finishes.put(Finish(event["uuid"], str(event["hostname"]).partition("@")[0], event.get("runtime")))
