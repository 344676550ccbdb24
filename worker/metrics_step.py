"""Serves a worker's metrics from before its first message is taken until it has ended, where a port is set.

The figures are `worker.metrics`'.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps, signals


class MetricsStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Opens the port of LAYA_METRICS_PORT."""

    requires = ("worker.app:ServingStep", "worker.placement_step:PlacementStep", "worker.redelivery:RedeliveryStep")

    def include_if(self, parent: Any) -> bool:
        """Only where a port was asked for."""
        return parent.app.settings.metrics_port is not None

    def start(self, parent: Any) -> None:
        """Count and serve.

        Raises:
            SystemExit: something else has the port.
        """
        from worker.metrics import Exporter  # noqa: PLC0415 - as in `worker.app`

        settings = parent.app.settings
        exporter = Exporter(parent, parent.app.service)
        parent.exporter = exporter  # a signal holds it weakly
        try:
            close = exporter.serve(settings.metrics_port, settings.metrics_host)
        except OSError as error:
            raise SystemExit(
                f"laya: LAYA_METRICS_PORT: {settings.metrics_host}:{settings.metrics_port} cannot be opened: {error}. "
                "Give each worker of a machine a port of its own; 0 takes a free one"
            ) from None
        signals.worker_shutdown.connect(lambda **_: close(), sender=parent, weak=False)
