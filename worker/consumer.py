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
        # Celery names neither the first interval nor the longest, and Redis is asked for nothing but to be there.
        conn.ensure_connection = lambda *args, **options: connect(
            *args, **{"interval_start": RETRY_S, "interval_step": 0, "interval_max": RETRY_S, **options}
        )
        try:
            return super().ensure_connected(conn)
        finally:
            del conn.ensure_connection
