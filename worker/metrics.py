"""The worker's figures for Prometheus, on a port of its own: those of the library's calls, and those of the worker.

What a call does is counted by `hooks.PrometheusMetrics`. What others keep already (queues as placement sees them, the
cache, what came back) is read from them when somebody asks, and counted nowhere twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from celery import signals
from celery.worker import state
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hooks.cache_stats import CacheStats
from hooks.metrics import PrometheusMetrics
from producer.served import waited
from worker.serving import Serving

logger = logging.getLogger(__name__)

_CACHE: Final = {
    "hits": "Calls answered from the cache.",
    "misses": "Calls whose answer was not in the cache.",
    "bypassed": "Calls that the cache left alone.",
    "waits": "Calls that waited for another's answer to the same request.",
    "discarded": "Stored values that were of no use.",
    "stored": "Answers written to the cache.",
    "unstored": "Answers that could not be written.",
    "errors": "Failed operations of the cache.",
}


class WorkerCollector(Collector):
    """Reads a worker's figures at the moment when they are asked for."""

    def __init__(self, worker: Any, serving: Serving) -> None:
        """Read from a Celery worker and its service."""
        self._worker, self._serving = worker, serving

    def collect(self) -> Iterator[Metric]:
        """Every figure that somebody keeps already."""
        yield from self._work()
        yield from self._checkpoints()
        yield from self._queues()
        yield from self._redeliveries()
        yield from self._cache()
        yield from device_memory()

    def _work(self) -> Iterator[Metric]:
        yield _gauge("laya_in_flight", "Messages in hand: worked on, or about to be.", len(state.reserved_requests))
        yield _gauge("laya_pool_threads", "Messages that can be worked on at once.", self._worker.concurrency)
        yield _gauge("laya_started_seconds", "Unix time of the start.", self._serving.tally.started)

    def _checkpoints(self) -> Iterator[Metric]:
        snapshot = self._serving.tally.snapshot()
        loading = GaugeMetricFamily("laya_checkpoint_loading", "1 while it is being loaded.", labels=["checkpoint"])
        failed = GaugeMetricFamily("laya_checkpoint_failed", "1 if its latest load failed.", labels=["checkpoint"])
        for name in self._serving.settings.names:
            loading.add_metric([name], float(name in snapshot.loading))
            failed.add_metric([name], float(name in snapshot.failures))
        yield loading
        yield failed

    def _queues(self) -> Iterator[Metric]:
        observer = getattr(self._worker, "observer", None)
        demand: Mapping[str, Any] = observer.demand if observer is not None else {}
        depth = GaugeMetricFamily("laya_queue_depth", "Messages that wait.", labels=["checkpoint"])
        oldest = GaugeMetricFamily("laya_queue_oldest_seconds", "Age of the oldest of them.", labels=["checkpoint"])
        for name, one in demand.items():
            depth.add_metric([name], one.depth)
            oldest.add_metric([name], one.age)
        yield depth
        yield oldest

    def _redeliveries(self) -> Iterator[Metric]:
        redelivery = getattr(self._worker, "redelivery", None)
        family = CounterMetricFamily(
            "laya_redeliveries", "Messages that came back, by what became of them.", labels=["outcome"]
        )
        for outcome, count in asdict(redelivery.outcomes).items() if redelivery is not None else ():
            family.add_metric([outcome], count)
        yield family

    def _cache_stats(self) -> CacheStats | None:
        """What the skip cache counted; a hook of somebody else's may have a `stats` that means something else."""
        from hooks.skip_cache import SkipCache  # noqa: PLC0415 - only where figures are asked for

        return next((hook.stats() for hook in self._serving.router.hooks if isinstance(hook, SkipCache)), None)

    def _cache(self) -> Iterator[Metric]:
        stats = self._cache_stats()
        if stats is None:
            return
        calls = CounterMetricFamily("laya_cache", "What the cache did.", labels=["what"])
        for name in _CACHE:
            calls.add_metric([name], getattr(stats, name))
        yield calls
        moved = CounterMetricFamily("laya_cache_bytes", "Bytes of values.", labels=["direction"])
        moved.add_metric(["read"], stats.bytes_read)
        moved.add_metric(["written"], stats.bytes_written)
        yield moved
        yield _gauge("laya_cache_open", "1 while the cache's server is left alone.", float(stats.state != "closed"))


def device_memory() -> Iterator[Metric]:
    """What torch holds on each CUDA device of this process; a CPU's is the process's own resident memory."""
    import torch  # noqa: PLC0415 - a worker has it by now

    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return
    family = GaugeMetricFamily("laya_device_memory_bytes", "Memory of a device.", labels=["device", "kind"])
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        for kind, value in (
            ("allocated", torch.cuda.memory_allocated(index)),
            ("reserved", torch.cuda.memory_reserved(index)),
            ("free", free),
            ("total", total),
        ):
            family.add_metric([f"cuda:{index}", kind], value)
    yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


class Exporter:
    """Collects the figures of one worker, and serves them."""

    def __init__(self, worker: Any, serving: Serving) -> None:
        """Count from now on."""
        # When each series began would double them, and `laya_started_seconds` tells it once.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        for collect in (ProcessCollector, PlatformCollector, GCCollector):
            collect(registry=self.registry)
        self._metrics = PrometheusMetrics(self.registry)
        serving.router.add_hook(self._metrics)
        for name in serving.router.loaded:  # what is preloaded is there by now
            self._metrics.observe_resident(name)
        serving.router.observe_passes(self._metrics.observe_pass)
        self.registry.register(WorkerCollector(worker, serving))
        signals.task_prerun.connect(self._begun)

    def serve(self, port: int, host: str) -> Callable[[], None]:
        """Open the port; what it returns closes it.

        Raises:
            OSError: something else has it.
        """
        server, thread = start_http_server(port, addr=host, registry=self.registry)
        logger.info("Metrics at http://%s:%d/metrics", *server.server_address[:2])

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return close

    def _begun(self, task: Any, **_: Any) -> None:
        """Time the wait in the queue of a message that is begun."""
        seconds = waited(task.request)
        if seconds is not None:
            self._metrics.observe_phase("queue", seconds)
