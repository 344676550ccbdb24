"""Celery's consumer as a worker of ours needs it: it never gives its broker up, and tells of tasks in bundles.

It connects again every second, for as long as it takes. Celery waits longer after each attempt, half a minute in the
end, and gives up after a hundred. A server that is back is to be served at once, and a worker that has given up would
have to be noticed. What is lost with a connection, and what is not, is the wire's matter.

Celery publishes the events of tasks at each turn of its loop, up to three times a task when there is little to do. That
keeps the thread that takes messages busy longer than many a task takes, and the task's thread from going on.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Any, Final

from celery.worker.consumer import Consumer

RETRY_S: Final = 1.0
"""Seconds between two attempts to connect."""

EVENTS_S: Final = 0.05
"""Seconds between two bundles of events. The first after a pause goes at once."""


class PersistentConsumer(Consumer):  # type: ignore[misc] # celery has no types
    """See the module."""

    _flushed_at = 0.0  # by `monotonic`
    _flush_due = False

    def shutdown(self) -> None:
        """End, with a last bundle."""
        with suppress(Exception):  # events are told where somebody listens, and may be lost
            super()._flush_events()
        super().shutdown()

    def _flush_events(self) -> None:
        """Publish the events that have gathered, or have this called again when that is due."""
        wait = self._flushed_at + EVENTS_S - monotonic()
        if wait <= 0:
            self._flushed_at, self._flush_due = monotonic(), False
            super()._flush_events()
        elif not self._flush_due:
            self._flush_due = True
            self.timer.call_after(wait, self._flush_soon)

    def _flush_soon(self) -> None:
        self._flush_due = False
        self.hub.call_soon(self._flush_events_promise)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect, waiting `RETRY_S` after each failure."""
        connect = conn.ensure_connection

        def persistently(errback: Any, *args: Any, callback: Any = None, **options: Any) -> Any:
            def each_time() -> None:
                if (watchdog := getattr(self.controller, "watchdog", None)) is not None:
                    watchdog.turn()
                if callback is not None:
                    callback()

            intervals = {"interval_start": RETRY_S, "interval_step": 0, "interval_max": RETRY_S}
            return connect(errback, *args, callback=each_time, **intervals, **options)

        conn.ensure_connection = persistently
        try:
            return super().ensure_connected(conn)
        finally:
            del conn.ensure_connection
