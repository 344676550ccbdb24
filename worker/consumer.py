"""A worker's way back to a broker that was away: every second, for as long as it takes.

Celery waits longer after each attempt, half a minute in the end, and gives up after a hundred. A server that is back is
to be served at once, and a worker that has given up would have to be noticed. What is lost with a connection, and what
is not, is the wire's matter.
"""

from __future__ import annotations

from typing import Any, Final

from celery.worker.consumer import Consumer

RETRY_S: Final = 1.0
"""Seconds between two attempts to connect."""


class PersistentConsumer(Consumer):  # type: ignore[misc] # celery has no types
    """Celery's consumer, which never gives its broker up."""

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
