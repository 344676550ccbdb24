"""A request's trace across the queue: where it is published, how long it waited, where it is answered.

Uses OpenTelemetry's API where it is installed; without its SDK, or without the API, this costs next to nothing. The
context travels in the message's headers, as the process's propagator writes it (W3C `traceparent` by default).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from producer.served import sent_at

NAME: Final = "laya"
"""The instrumentation scope of every span."""


@cache
def _api() -> Any:
    """OpenTelemetry's `trace`, `propagate` and `context`, or None where the API is not installed."""
    if find_spec("opentelemetry") is None:
        return None
    return tuple(import_module(f"opentelemetry.{name}") for name in ("trace", "propagate", "context"))


def _nobody_records(trace: Any) -> bool:
    return isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def publishing(
    task: str, task_id: str, queue: str, headers: Mapping[str, Any]
) -> AbstractContextManager[Mapping[str, Any]]:
    """Span the publishing of a task; the block gets its headers with the context in them.

    Args:
        task, task_id: name and id of the task.
        queue: where it goes.
        headers: those it has already; a context that stands there stays.
    """
    api = _api()
    if api is None:
        return nullcontext(headers)
    trace, propagate, context = api
    if not context.get_current() and _nobody_records(trace):  # there is nothing to send on either
        return nullcontext(headers)
    return _publishing(task, task_id, queue, headers, trace, propagate)


@contextmanager
def _publishing(
    task: str, task_id: str, queue: str, headers: Mapping[str, Any], trace: Any, propagate: Any
) -> Iterator[Mapping[str, Any]]:
    with trace.get_tracer(NAME).start_as_current_span(
        f"send {queue}",
        kind=trace.SpanKind.PRODUCER,
        attributes=_messaging("send", task, task_id, queue),
        # An error's text can quote the request: its class stands in the status.
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        context: dict[str, str] = {}
        propagate.inject(context)
        try:
            yield {**context, **headers}
        except BaseException as error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise


def answering(task: str, request: Any) -> AbstractContextManager[None]:
    """Span the block as the answering of a task, a child of where it was published; its wait in the queue beside it."""
    api = _api()
    if api is None or _nobody_records(api[0]):
        return nullcontext()
    trace, propagate, _ = api
    return _answering(task, request, trace, propagate)


@contextmanager
def _answering(task: str, request: Any, trace: Any, propagate: Any) -> Iterator[None]:
    context = propagate.extract(_texts(request.headers or {}))
    tracer, queue = trace.get_tracer(NAME), _queue(request)
    attributes = _messaging("process", task, request.id, queue)
    sent = sent_at(request)
    if sent is not None:
        tracer.start_span("laya.queue", context=context, start_time=round(sent * 1e9)).end(time.time_ns())
    with tracer.start_as_current_span(
        f"process {queue}",
        context=context,
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except BaseException as error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise


def _messaging(operation: str, task: str, task_id: str, queue: str) -> dict[str, str]:
    """Attributes by OpenTelemetry's semantic conventions for messaging."""
    return {
        "messaging.system": "redis",
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "messaging.message.id": task_id,
        "laya.task": task,
    }


def _queue(request: Any) -> str:
    delivery: Mapping[str, Any] = request.delivery_info or {}
    return str(delivery.get("routing_key") or "")


def _texts(headers: Mapping[str, Any]) -> dict[str, str]:
    """What a propagator may read: headers that are text."""
    return {name: value for name, value in headers.items() if isinstance(value, str)}
