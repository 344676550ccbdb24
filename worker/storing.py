"""A worker's result store, which waits for a server that is away: a result that is computed is not given up.

Celery gives up after some twenty seconds, acknowledges the message, and the answer is lost. Here the thread that has
the result keeps trying; meanwhile the worker takes no further messages (`waiting` is not 0, see `worker.room`), so that
they go to workers that can store. A worker that is asked to end waits a little and then puts the message back.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

from celery.exceptions import BackendStoreError, Reject
from celery.utils.log import get_logger
from celery.worker import state
from redis.exceptions import RedisError

from producer.results import ResultStore, SentinelResultStore

logger = get_logger(__name__)

RETRY_S: Final = 1.0
"""Seconds between two attempts."""

REFUSED_S: Final = 20.0
"""Seconds after which a result is given up that the server refuses: it answers, so waiting will hardly help."""

ENDING_S: Final = 5.0
"""Seconds that a worker which is asked to end waits for its store."""


class ResultNotStored(Reject):  # type: ignore[misc] # celery has no types
    """A result was given up. Its message is not acknowledged: see `worker.settling`."""


@dataclass(slots=True, eq=False)
class _Closing:
    """The storing of an error for a task that is still worked on."""

    thread: int = field(default_factory=threading.get_ident)
    over: threading.Event = field(default_factory=threading.Event)
    stored: bool = False


class PatientStore(ResultStore):
    """The result store of a worker."""

    waiting = 0
    """Threads that have a result which the store has not taken."""

    _counting = threading.Lock()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the store as Celery does; nothing is connected yet."""
        super().__init__(*args, **kwargs)
        self._closings: dict[Any, _Closing] = {}

    def close_with(self, task_id: str, error: Exception, request: Any) -> None:
        """Store an error for a task that is still worked on; what it comes to itself is not stored then.

        Raises:
            BackendStoreError: the server is away.
        """
        key = self.get_key_for_task(task_id)
        closing = self._closings[key] = _Closing()
        try:
            self.mark_as_failure(task_id, error, request=request._context)
            closing.stored = True
        finally:
            if not closing.stored:
                self._closings.pop(key, None)
            closing.over.set()

    def persist(self, key: Any, value: Any, expires: int) -> None:
        """Store a result, however long the server is away.

        Raises:
            ResultNotStored: the server refuses it, or the worker is asked to end.
            BackendStoreError: the server is away, and this is not the thread of a task.
        """
        if self._closed_meanwhile(key):
            return
        try:
            self.writer.write(key, value, expires)
        except (*self.connection_errors, RedisError) as error:
            if self.app.current_worker_task is None:
                # The worker's loop, say about a task that was revoked: it has more to do than to wait.
                raise BackendStoreError(f"the result store does not take a result: {error}") from error
            self._wait(key, value, expires, error)

    def _closed_meanwhile(self, key: Any) -> bool:
        """Whether another thread has stored the outcome, so that this one's is none; asked once.

        One that is about to may fail at it, so this waits for it: a result that is given up for it would be lost.
        """
        closing = self._closings.get(key)
        if closing is None or closing.thread == threading.get_ident():
            return False
        closing.over.wait()
        if closing.stored:
            self._closings.pop(key, None)
        return closing.stored

    def _wait(self, key: Any, value: Any, expires: int, error: Exception) -> None:
        since, ending_since = time.monotonic(), None
        if self._count(1) == 1:
            logger.error("The result store does not take a result, trying again every second: %s", error)
        try:
            while True:
                ending_since = ending_since or (time.monotonic() if is_ending() else None)
                self._give_up_if(error, since, ending_since)
                time.sleep(RETRY_S)
                if self._closed_meanwhile(key):
                    return
                try:
                    self.writer.write(key, value, expires)
                except (*self.connection_errors, RedisError) as again:
                    error = again
                else:
                    return
        finally:
            if self._count(-1) == 0:
                logger.warning("No result waits for the result store any more, after %.0f s", time.monotonic() - since)

    def _give_up_if(self, error: Exception, since: float, ending_since: float | None) -> None:
        now = time.monotonic()
        refused = not isinstance(error, self.connection_errors) and now - since > REFUSED_S
        if refused or (ending_since is not None and now - ending_since > ENDING_S):
            raise ResultNotStored(f"the result could not be stored: {error}", requeue=not refused) from error

    def _count(self, one: int) -> int:
        with self._counting:
            self.waiting += one
            return self.waiting


class PatientSentinelStore(PatientStore, SentinelResultStore):
    """The same on the primary that Redis Sentinel names."""


def patient_store_for(url: str) -> str:
    """Which class keeps a worker's results at a URL, as an import path."""
    return f"worker.storing:{'PatientSentinelStore' if url.startswith('sentinel://') else 'PatientStore'}"


def is_ending() -> bool:
    """Whether this worker was asked to end."""
    return any(flag is not None and flag is not False for flag in (state.should_stop, state.should_terminate))
