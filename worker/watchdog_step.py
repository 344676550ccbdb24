"""Starts the watchdog with a worker, and tells it of each channel that messages come through.

It also answers `celery -A worker inspect health`. What is watched, and what follows, is `worker.watchdog`'s.
"""

from __future__ import annotations

import time
from typing import Any

from celery import bootsteps, signals
from celery.worker.control import inspect_command

from producer.transport_records import QoS
from worker.health import problems
from worker.watchdog import EVERY_S, Watchdog


class WatchdogStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Starts the watchdog. It ends when the pool has finished: a worker that is asked to end may hang as well."""

    requires = ("celery.worker.components:Pool", "celery.worker.components:Timer")

    def start(self, parent: Any) -> None:
        """Begin to look."""
        watchdog = parent.watchdog = Watchdog(parent)
        signals.worker_shutdown.connect(lambda **_: watchdog.stop(), sender=parent, weak=False)
        parent.timer.call_repeatedly(EVERY_S, watchdog.turn)
        watchdog.start()


class PulseStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Tells the watchdog of the consumer's channel, at each connection anew."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """There is a channel."""
        watchdog = getattr(parent.controller, "watchdog", None)
        channel = parent.task_consumer.channel
        if watchdog is not None and isinstance(channel.qos, QoS):
            watchdog.begin(channel)

    def stop(self, parent: Any) -> None:
        """There is none any more."""
        watchdog = getattr(parent.controller, "watchdog", None)
        if watchdog is not None:
            watchdog.channel = None

    shutdown = stop


@inspect_command(name="health")  # type: ignore[untyped-decorator]
def health(state: Any, **_: Any) -> dict[str, Any]:
    """What a worker says of itself, and what is wrong with it."""
    watchdog = getattr(state.consumer.controller, "watchdog", None)
    if watchdog is None:
        return {"ok": "nobody watches"}
    pulse = watchdog.pulse()
    return {"problems": problems(pulse, time.time()), "working": pulse.working, "oldest": round(pulse.oldest, 1)}
