"""Spans of OpenTelemetry for what happens in a worker: a request, its parts, and the forward passes that it shared.

Needs OpenTelemetry's API; without its SDK nothing is recorded and next to nothing spent. How a trace reaches the worker
from a backend, and where spans are sent, is decided outside.
"""

from __future__ import annotations

import time
from contextvars import Context
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context as OfNobody
from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer, TracerProvider

from hooks.outcomes import outcome
from laya import BaseHook, PredictContext
from laya.batching import PassReport

NAME: Final = "laya"
"""The instrumentation scope of every span."""


class Tracing(BaseHook):
    """A span for each request, a child for each of its parts, and one for each pass. Safe to use from many threads.

    A request's span is a child of the span that is current where the call is made. A pass belongs to many requests: its
    span is a trace of its own, with a link to each caller's current span.
    """

    raise_errors = False  # a trace that cannot be written takes no answer away

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """Write with `provider`, the process's own by default."""
        self._tracer: Tracer = trace.get_tracer(NAME, tracer_provider=provider)

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Write the request's span and its parts, now that all is known: a call that was refused at its start too."""
        span = self._tracer.start_span(
            "laya.predict", start_time=_unix_ns(ctx.started_at), attributes={"laya.run_id": ctx.run_id}
        )
        if span.is_recording():
            self._describe(span, ctx)
        span.end()

    def observe_pass(self, report: PassReport) -> None:
        """Write the span of a pass: give this as `observe` to `laya.batching.Batching`."""
        callers = [_current_span(context).get_span_context() for context in report.contexts]
        distinct = {caller.span_id: caller for caller in callers if caller.is_valid}
        ended = time.time_ns()
        span = self._tracer.start_span(
            "laya.pass",
            context=OfNobody(),
            links=[Link(caller) for caller in distinct.values()],
            start_time=ended - round(report.seconds * 1e9),
            attributes={
                "laya.pass.rows": report.rows,
                "laya.pass.tokens": report.tokens,
                "laya.pass.padded_tokens": report.padded,
                "laya.pass.outcome": report.outcome,
            },
        )
        span.end(ended)

    def _describe(self, span: Span, ctx: PredictContext) -> None:
        span.set_attribute("laya.outcome", outcome(ctx))
        if ctx.model is not None:
            span.set_attribute("laya.checkpoint", ctx.model)
        if ctx.usage is not None:
            span.set_attribute("laya.input_tokens", ctx.usage["input_tokens"])
        if ctx.error is not None:
            # The class alone: an error's text can quote the request.
            span.set_status(Status(StatusCode.ERROR, type(ctx.error).__name__))
        inside = trace.set_span_in_context(span)
        for phase in ctx.phases:
            part = self._tracer.start_span(f"laya.{phase.name}", context=inside, start_time=_unix_ns(phase.started))
            part.end(_unix_ns(phase.started + phase.seconds))


def _current_span(context: Context) -> Span:
    return context.run(trace.get_current_span)


def _unix_ns(reading: float) -> int:
    """A reading of `time.perf_counter()` of a moment ago, as Unix time in nanoseconds."""
    return time.time_ns() - round((time.perf_counter() - reading) * 1e9)
