"""Starts placement with a worker, before its first message is taken; ends it as soon as the worker is asked to stop.

So others see to its checkpoints while it still finishes what it has in hand.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps, signals

from worker.placement_view import Rules


class PlacementStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Tells others what this worker holds, and decides which queues it reads."""

    requires = ("worker.app:ServingStep",)

    def start(self, parent: Any) -> None:
        """Decide for the first time; the queues are read from then on as decided."""
        from worker.heartbeat import ask_through, entry_of  # noqa: PLC0415 - as in `worker.app`
        from worker.observer import Observer  # noqa: PLC0415

        app, settings = parent.app, parent.app.settings
        queues = frozenset(app.amqp.queues.consume_from)
        entry = entry_of(parent.hostname, str(settings.max_loaded), settings.names)
        threads = getattr(parent, "max_concurrency", None) or parent.concurrency
        observer = Observer(
            app.service,
            Rules(dwell_s=settings.dwell),
            entry,
            ask_through(app, settings.namespace, entry.id),
            threads=threads,
            queues=queues,
        )
        signals.worker_shutting_down.connect(lambda **_: observer.stop(), weak=False)
        signals.worker_shutdown.connect(lambda **_: observer.end(), sender=parent, weak=False)
        parent.observer = observer
        observer.start()
