"""The spans of real calls, as OpenTelemetry's SDK exports them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hooks import Tracing
from laya import Router
from laya.batching import Batching
from laya.simulated import write_checkpoint
from worker import tracing

QUESTIONS = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
SECRET = "4111-1111-1111-1111"


class Traced:
    def __init__(self, home: Path) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        hook = Tracing(self.provider)
        self.router = Router(
            models={"one": str(write_checkpoint(home / "one", pass_ms=1, device=str(home)))},
            device="cpu",
            default="one",
            hooks=hook,
            defer_load=True,
            agent_kwargs={"batching": Batching(observe=hook.observe_pass)},
        )

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


def test_a_request_is_a_child_of_the_current_span_and_its_parts_are_its_children(traced: Traced) -> None:
    tracer = traced.provider.get_tracer("test")
    with tracer.start_as_current_span("outside") as outside:
        traced.router.predict(SECRET, QUESTIONS)
    (request,) = traced.spans("laya.predict")
    assert request.parent is not None
    assert request.parent.span_id == outside.get_span_context().span_id
    assert request.attributes is not None
    assert request.attributes["laya.checkpoint"] == "one"
    assert request.attributes["laya.outcome"] == "answered"
    assert request.context is not None
    for part in ("laya.load", "laya.tokenise", "laya.batch_wait", "laya.forward"):
        (span,) = traced.spans(part)
        assert span.parent is not None
        assert span.parent.span_id == request.context.span_id, part
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time


def test_a_pass_links_to_every_caller_that_it_computed_for(traced: Traced) -> None:
    tracer = traced.provider.get_tracer("test")
    with tracer.start_as_current_span("outside") as outside:
        traced.router.predict(SECRET, QUESTIONS)
    (one,) = traced.spans("laya.pass")
    assert one.parent is None
    assert [link.context.span_id for link in one.links] == [outside.get_span_context().span_id]
    assert one.attributes is not None
    assert one.attributes["laya.pass.rows"] == 1


def test_the_requests_of_a_batch_stand_side_by_side(traced: Traced) -> None:
    tracer = traced.provider.get_tracer("test")
    with tracer.start_as_current_span("outside") as outside:
        traced.router.predict_batch([{"state": text, "questions": QUESTIONS} for text in "abc"])
    parents = {span.parent.span_id for span in traced.spans("laya.predict") if span.parent is not None}
    assert len(traced.spans("laya.predict")) == 3
    assert parents == {outside.get_span_context().span_id}


def test_an_error_is_named_by_its_class_and_quotes_nothing(traced: Traced) -> None:
    with pytest.raises(ValueError, match=SECRET):
        traced.router.predict(SECRET, {SECRET: {"type": SECRET}})
    (request,) = traced.spans("laya.predict")
    assert request.status.description == "ValueError"
    assert SECRET not in "".join(span.to_json() for span in traced.exporter.get_finished_spans())


def test_a_call_that_an_earlier_hook_refused_is_told_too(traced: Traced) -> None:
    def refuse(_: Any) -> None:
        raise PermissionError("no")

    class First:
        on_predict_start = staticmethod(refuse)

    hook = Tracing(traced.provider)
    router = Router(models={"one": traced.router.models["one"] or ""}, default="one", hooks=[First(), hook])
    with pytest.raises(PermissionError):
        router.predict("x", QUESTIONS)
    (request,) = traced.spans("laya.predict")
    assert request.status.description == "PermissionError"


def test_without_an_sdk_nothing_is_recorded(tmp_path: Path) -> None:
    hook = Tracing(trace.NoOpTracerProvider())
    home = write_checkpoint(tmp_path / "one", pass_ms=1, device=str(tmp_path))
    router = Router(models={"one": str(home)}, default="one", device="cpu", hooks=hook)
    assert router.predict("x", QUESTIONS)["answers"]


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_a_worker_without_the_packages_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'laya-workers\[tracing\]'"):
        tracing.set_up()
