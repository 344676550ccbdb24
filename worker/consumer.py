"""Celery's consumer as a worker of ours needs it: it never gives its broker up, and tells of a task when it is done.

It connects again every second, for as long as it takes. Celery waits longer after each attempt, half a minute in the
end, and gives up after a hundred. A server that is back is to be served at once, and a worker that has given up would
have to be noticed. What is lost with a connection, and what is not, is the wire's matter.

Celery publishes the events of tasks at each turn of its loop, the first as soon as a task is handed to its thread. The
loop's thread then holds Python's lock for as long as many a task takes.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Any, Final

from celery.worker.consumer import Consumer

RETRY_S: Final = 1.0
"""Seconds between two attempts to connect."""

EVENTS_S: Final = 0.005
"""Seconds for which events of tasks gather before they are published together."""

LATE_S: Final = 1.0
"""Seconds after which a bundle that was due will not come: the timers go with a connection."""


class PersistentConsumer(Consumer):  # type: ignore[misc] # celery has no types
    """See the module."""

    _bundle_due = 0.0  # by `monotonic`; 0: none is under way

    def _flush_events(self) -> None:
        """Have the events that have gathered published soon. Celery calls this in its loop when there are any."""
        now = monotonic()
        if not self._bundle_due or now > self._bundle_due + LATE_S:
            self._bundle_due = now + EVENTS_S
            self.timer.call_after(EVENTS_S, self._publish_bundle)

    def _publish_bundle(self) -> None:
        self._bundle_due = 0.0
        super()._flush_events()

    def shutdown(self) -> None:
        """End, and tell what has not been told."""
        with suppress(Exception):  # events are told where somebody listens, and may be lost
            super()._flush_events()
        super().shutdown()

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
