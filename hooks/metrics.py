"""What a worker does, as Prometheus metrics: requests, their parts, forward passes, checkpoints in memory.

A hook of the lifecycle, and an observer of shared passes. What lies outside the library (the queue, the cache,
redeliveries) is added by whoever knows it; serving the figures over HTTP is not done here either.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from hooks.outcomes import answers_of, outcome
from laya import BaseHook, PredictContext
from laya.batching import PassReport
from laya.confidence import ABSTAINED, PASSED, UNEVALUATED

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of the histograms of time: from a hit to a load from the Hub."""

ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Bounds of the histogram of rows a pass."""

_ABSTENTIONS: Final = frozenset({PASSED, ABSTAINED, UNEVALUATED})


@dataclass(frozen=True, slots=True)
class Families:
    """The metrics of one registry. Labels have few values: names of registered checkpoints, and the words above."""

    requests: Counter
    seconds: Histogram
    phases: Histogram
    answers: Counter
    tokens: Counter
    pass_rows: Histogram
    pass_seconds: Histogram
    pass_tokens: Counter
    pass_failures: Counter
    loads: Counter
    evictions: Counter
    resident: Gauge
    load_seconds: Histogram

    @classmethod
    def on(cls, registry: CollectorRegistry) -> Families:
        """Register them."""
        return cls(
            requests=Counter("laya_requests", "Requests that ended.", ("checkpoint", "outcome"), registry=registry),
            seconds=Histogram(
                "laya_request_seconds",
                "Seconds from a request's start hooks to its end hooks; loading is left out.",
                ("checkpoint",),
                registry=registry,
                buckets=SECONDS,
            ),
            phases=Histogram(
                "laya_phase_seconds",
                "Seconds that one part of a request took: queue, load, tokenise, batch_wait, forward, cache.",
                ("phase",),
                registry=registry,
                buckets=SECONDS,
            ),
            answers=Counter(
                "laya_answers",
                "Answers given, by what the confidence gate made of them; `none` where there was no gate.",
                ("checkpoint", "abstention"),
                registry=registry,
            ),
            tokens=Counter("laya_input_tokens", "Tokens of answered requests.", ("checkpoint",), registry=registry),
            pass_rows=Histogram("laya_pass_rows", "Rows of a forward pass.", registry=registry, buckets=ROWS),
            pass_seconds=Histogram("laya_pass_seconds", "Seconds of a pass.", registry=registry, buckets=SECONDS),
            pass_tokens=Counter(
                "laya_pass_tokens", "Tokens computed: a row's own, and its padding.", ("kind",), registry=registry
            ),
            pass_failures=Counter(
                "laya_pass_failures", "Passes that failed, and were split or given up.", ("reason",), registry=registry
            ),
            loads=Counter("laya_checkpoint_loads", "Checkpoints loaded.", ("checkpoint",), registry=registry),
            evictions=Counter("laya_checkpoint_evictions", "Checkpoints let go.", ("checkpoint",), registry=registry),
            resident=Gauge("laya_checkpoint_resident", "1 while in memory.", ("checkpoint",), registry=registry),
            load_seconds=Histogram(
                "laya_checkpoint_load_seconds",
                "Seconds that a request waited for a checkpoint to be built.",
                ("checkpoint",),
                registry=registry,
                buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
            ),
        )


_families: weakref.WeakKeyDictionary[CollectorRegistry, Families] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def families_of(registry: CollectorRegistry) -> Families:
    """The metrics of a registry, registered when they are first wanted: two hooks may share one registry."""
    with _lock:
        found = _families.get(registry)
        if found is None:
            found = _families[registry] = Families.on(registry)
        return found


class PrometheusMetrics(BaseHook):
    """Counts and times requests, passes and checkpoints. Safe to use from many threads."""

    raise_errors = False  # a figure that cannot be written takes no answer away

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Write into `registry`, by default the process's own."""
        self.registry = registry
        self._to = families_of(registry)

    def on_load(self, ctx: PredictContext) -> None:
        """One more in memory."""
        self.observe_resident(str(ctx.model))

    def on_evict(self, ctx: PredictContext) -> None:
        """One less in memory."""
        self._to.evictions.labels(str(ctx.model)).inc()
        self._to.resident.labels(str(ctx.model)).set(0)

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Count the request and time its parts."""
        checkpoint = checkpoint_of(ctx)
        self._to.requests.labels(checkpoint, outcome(ctx)).inc()
        if ctx.elapsed_ms is not None:
            self._to.seconds.labels(checkpoint).observe(ctx.elapsed_ms / 1000)
        for phase in ctx.phases:
            self._to.phases.labels(phase.name).observe(phase.seconds)
            if phase.name == "load":
                self._to.load_seconds.labels(checkpoint).observe(phase.seconds)
        if ctx.error is None:
            self._count_answers(ctx, checkpoint)

    def observe_pass(self, report: PassReport) -> None:
        """Count a forward pass: give this as `observe` to `laya.batching.Batching`."""
        if report.outcome != "done":
            self._to.pass_failures.labels("out_of_memory" if report.out_of_memory else "error").inc()
            return
        self._to.pass_rows.observe(report.rows)
        self._to.pass_seconds.observe(report.seconds)
        self._to.pass_tokens.labels("own").inc(report.tokens)
        self._to.pass_tokens.labels("padding").inc(report.padded - report.tokens)

    def observe_phase(self, name: str, seconds: float) -> None:
        """Time a part that lies outside the lifecycle, such as the wait in the queue (`queue`)."""
        self._to.phases.labels(name).observe(max(0.0, seconds))

    def observe_resident(self, checkpoint: str) -> None:
        """Count a checkpoint's load: also one that was in memory before this hook was there to hear of it."""
        self._to.loads.labels(checkpoint).inc()
        self._to.resident.labels(checkpoint).set(1)

    def _count_answers(self, ctx: PredictContext, checkpoint: str) -> None:
        if ctx.usage is not None:
            self._to.tokens.labels(checkpoint).inc(ctx.usage.get("input_tokens", 0))
        for answer in answers_of(ctx):
            abstention = answer.get("abstention")
            self._to.answers.labels(checkpoint, abstention if abstention in _ABSTENTIONS else "none").inc()


def checkpoint_of(ctx: PredictContext) -> str:
    """The checkpoint's name; that of a request which failed before it was routed is not known."""
    return str(ctx.model) if ctx.model is not None else "unknown"
