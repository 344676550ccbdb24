"""One trace from a backend through the queue to the forward pass, as a collector receives it over OTLP."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from laya.simulated import write_checkpoint
from tests.celery_process import ROOT
from tests.integration.conftest import WorkerProcess
from worker.server import EmbeddedServer

SECRET = "4111-1111-1111-1111"

BACKEND = f"""
import sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)

from producer import PredictionFailed, predict

questions = {{"urgent": {{"type": "noul", "instructions": "Is it urgent?"}}}}
with trace.get_tracer("shop").start_as_current_span("checkout"):
    predict("{SECRET}", questions)
with trace.get_tracer("shop").start_as_current_span("broken"):
    try:
        predict("raise RuntimeError", questions)
    except PredictionFailed:
        pass
provider.shutdown()
"""


class Collector:
    """Takes spans as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        spans: list[Span] = []

        class Take(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        spans.extend(scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.spans = spans
        self.before_end: frozenset[str] = frozenset()
        """Names of the spans that had come when the worker was asked to end."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def one(self, name: str, trace_id: bytes) -> Span:
        (found,) = [span for span in self.spans if span.name == name and span.trace_id == trace_id]
        return found


@pytest.fixture(scope="module")
def collector(
    server: EmbeddedServer, make_worker: Callable[..., WorkerProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Collector]:
    """All spans of two requests; the worker's come when it ends, for its batches wait for a minute."""
    taken = Collector()
    home: Path = tmp_path_factory.mktemp("checkpoints")
    settings = {
        "LAYA_BROKER_URL": server.url,
        "LAYA_CHECKPOINTS": f"english={write_checkpoint(home / 'english', pass_ms=2)}",
        "OTEL_EXPORTER_OTLP_ENDPOINT": taken.url,
    }
    worker = make_worker("-c", "2", OTEL_BSP_SCHEDULE_DELAY="60000", LAYA_HOOKS="queue_hooks.Trouble", **settings)
    worker.start()
    done = subprocess.run(
        [sys.executable, "-c", BACKEND], env=settings, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    taken.before_end = frozenset(span.name for span in taken.spans)
    assert worker.terminate() == 0
    yield taken
    taken.close()


def trace_of(collector: Collector, name: str) -> bytes:
    (root,) = [span for span in collector.spans if span.name == name]
    return root.trace_id


def test_sigterm_sends_the_spans_that_wait_for_their_batch(collector: Collector) -> None:
    of_worker = {"process laya.english", "laya.queue", "laya.predict", "laya.forward", "laya.pass"}
    assert not of_worker & collector.before_end
    assert of_worker <= {span.name for span in collector.spans}


def test_one_trace_leads_from_the_backend_to_the_checkpoint(collector: Collector) -> None:
    trace_id = trace_of(collector, "checkout")
    way = ["checkout", "send laya.english", "process laya.english", "laya.predict", "laya.forward"]
    spans = [collector.one(name, trace_id) for name in way]
    assert [span.parent_span_id for span in spans[1:]] == [span.span_id for span in spans[:-1]]


def test_the_wait_in_the_queue_lies_between_sending_and_answering(collector: Collector) -> None:
    trace_id = trace_of(collector, "checkout")
    send, wait = collector.one("send laya.english", trace_id), collector.one("laya.queue", trace_id)
    process = collector.one("process laya.english", trace_id)
    assert wait.parent_span_id == process.parent_span_id == send.span_id
    assert wait.end_time_unix_nano <= process.start_time_unix_nano + 5_000_000


def test_the_pass_is_linked_to_those_it_computed_for(collector: Collector) -> None:
    process = collector.one("process laya.english", trace_of(collector, "checkout"))
    passes = [span for span in collector.spans if span.name == "laya.pass"]
    assert [link.span_id for one in passes for link in one.links] == [process.span_id]


def test_a_failure_is_marked_by_its_class(collector: Collector) -> None:
    trace_id = trace_of(collector, "broken")
    predict, process = collector.one("laya.predict", trace_id), collector.one("process laya.english", trace_id)
    assert (predict.status.message, process.status.message) == ("RuntimeError", "PredictionFailed")


def test_no_span_holds_a_text_of_a_request(collector: Collector) -> None:
    everything = b"".join(span.SerializeToString() for span in collector.spans)
    assert SECRET.encode() not in everything
    assert b"Is it urgent?" not in everything
