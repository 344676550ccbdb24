"""A worker process on an embedded server, as benchmarks need it: filled queues, rates, CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import redis

from producer.app import PredictionApp
from producer.settings import ProducerSettings
from producer.tasks import SubmitPrediction, SubmitPredictions, register
from worker.server import EmbeddedServer

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_S = 120.0


class Bench:
    """One server, a backend's app, and workers that are ended with it."""

    def __init__(
        self, server: EmbeddedServer, scratch: Path, checkpoints: str, app: str = "benchmarks.noop_app"
    ) -> None:
        """Publish to `server`; workers serve `checkpoints` and are told by the module `app`."""
        self.server, self.scratch, self.checkpoints = server, scratch, checkpoints
        self._app_module = app
        self.client = redis.Redis.from_url(server.url)
        self.app = PredictionApp(ProducerSettings(broker_url=server.url, checkpoints=checkpoints))
        self.submit_prediction: SubmitPrediction
        self.submit_predictions: SubmitPredictions
        self.submit_prediction, self.submit_predictions = register(self.app)

    @contextmanager
    def worker(self, *options: str, **settings: str) -> Iterator[psutil.Process]:
        """A worker that takes messages; SIGTERM ends it with the block."""
        log = self.scratch / f"worker-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "celery", "-A", self._app_module, "worker", "-l", "INFO"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LAYA_BROKER_URL": self.server.url,
            "LAYA_CHECKPOINTS": self.checkpoints,
            "LAYA_DEVICE": "cpu",
            **settings,
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--without-gossip", "--without-mingle", *options],
                env=environment,
                cwd=ROOT,
                stdout=output,
                stderr=output,
            )
        try:
            until(lambda: "ready." in log.read_text(errors="replace"), f"the worker's start, see {log}")
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(PATIENCE_S)

    @contextmanager
    def filling(self, process: psutil.Process) -> Iterator[None]:
        """Stop a worker while the block fills its queues, so that nothing is answered before the clock runs."""
        process.suspend()
        try:
            yield
        finally:
            process.resume()

    def publish(self, calls: list[tuple[Any, tuple[Any, ...], Mapping[str, Any]]]) -> None:
        """Publish calls (task, arguments, options) in one pipeline."""
        with self.app.producer_or_acquire() as producer, producer.batch():
            for task, arguments, options in calls:
                task.apply_async(arguments, dict(options), producer=producer)

    def waiting(self) -> int:
        """Messages on any queue, taken ones included."""
        queues = [
            name for name in self.client.keys("laya*") if self.client.type(name) == b"list" and b"bell" not in name
        ]
        unacknowledged: int = self.client.hlen("unacked")
        return unacknowledged + sum(self.client.llen(name) for name in queues)

    def drain(self, process: psutil.Process, number: int) -> tuple[float, float]:
        """Wait until the queues are empty; (messages a second, CPU seconds a message) of the worker."""
        cpu_before, started = cpu_of(process), time.perf_counter()
        until(lambda: self.waiting() == 0, "the queues to run empty", pause=0.02)
        took = time.perf_counter() - started
        return number / took, (cpu_of(process) - cpu_before) / number

    def close(self) -> None:
        """Close the connections."""
        self.app.close()
        self.client.close()


def cpu_of(process: psutil.Process) -> float:
    """CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def until(condition: Callable[[], Any], what: str, pause: float = 0.05) -> None:
    """Wait for a condition; TimeoutError after two minutes."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come about within {PATIENCE_S:.0f} s")
        time.sleep(pause)
