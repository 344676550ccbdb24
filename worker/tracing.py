"""Sends a worker's traces where OTEL_EXPORTER_OTLP_ENDPOINT says, and the last of them before it ends.

OpenTelemetry's own variables set it up, so that a worker is traced as any other service is. A process that somebody
else has set up (`opentelemetry-instrument`, a hook's module) is left as it is, but for the flush at its end.
"""

from __future__ import annotations

import logging
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from celery import bootsteps, signals

if TYPE_CHECKING:
    from worker.serving import Serving

logger = logging.getLogger(__name__)

FLUSH_MS: Final = 5000
"""Milliseconds that the end of a worker waits for its last spans to be sent."""

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def wanted() -> bool:
    """Whether the environment names a place for traces."""
    return any(os.environ.get(name) for name in _ENDPOINTS) and os.environ.get("OTEL_SDK_DISABLED", "") != "true"


def set_up() -> None:
    """Record spans and send them in batches, unless this process has a provider already.

    Raises:
        ModuleNotFoundError: the packages are not installed; the message says what brings them.
    """
    try:
        from opentelemetry import trace  # noqa: PLC0415 - only where traces are wanted
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "traces need OpenTelemetry's SDK and its exporter: pip install 'laya-workers[tracing]'"
        ) from error
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "laya-worker"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def flush() -> None:
    """Send what is recorded and not sent."""
    if find_spec("opentelemetry") is None:
        return
    from opentelemetry import trace  # noqa: PLC0415 - it is there, see above

    force: Any = getattr(trace.get_tracer_provider(), "force_flush", None)
    if force is not None and not force(FLUSH_MS):
        logger.warning("The last spans could not be sent within %.0f s", FLUSH_MS / 1000)


def install(serving: Serving) -> None:
    """Trace the calls and passes of a service, unless LAYA_HOOKS does already."""
    from hooks import Tracing  # noqa: PLC0415 - only where traces are wanted

    if not any(isinstance(hook, Tracing) for hook in serving.router.hooks):
        hook = Tracing()
        serving.router.add_hook(hook)
        serving.router.observe_passes(hook.observe_pass)


class TracingStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Sets tracing up with the service, and flushes when the worker has answered its last."""

    requires = ("worker.app:ServingStep",)

    def start(self, parent: Any) -> None:
        """Trace from now on, if it is wanted.

        Raises:
            SystemExit: it is wanted, and the packages are not installed.
        """
        if wanted():
            try:
                set_up()
            except ModuleNotFoundError as error:
                raise SystemExit(f"laya: {error}, or unset OTEL_EXPORTER_OTLP_ENDPOINT") from None
            install(parent.app.service)
        # A provider of somebody else's is flushed too.
        signals.worker_shutdown.connect(lambda **_: flush(), sender=parent, weak=False)
