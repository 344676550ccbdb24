"""One side of a comparison on the queue's wire: a server, an app, and worker processes that are started and killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import redis

from benchmarks.wire_app import QUEUE, make_app
from worker.server import EmbeddedServer

ROOT = Path(__file__).resolve().parents[1]
RESULT_KEY = "celery-task-meta-"
EXIT_S = 30.0
FILL_BYTES = 1_000_000  # in one pipeline


class Side:
    """`ours` or `stock`, on a server of its own."""

    def __init__(self, kind: str, home: Path, *, visibility_timeout: int = 120, durable: bool = False) -> None:
        """Describe a side; `durable` keeps every change of the server's on disk, so that a kill loses none."""
        self.kind = kind
        self._visibility = visibility_timeout
        self._log = home / f"{kind}.log"
        options = {"appendfsync": "always"} if durable else {}
        self.server = EmbeddedServer(directory=home / kind, appendonly=durable, options=options)
        self._worker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the server, and connect to it."""
        self.server.start()
        self.client: Any = redis.Redis.from_url(self.server.url)
        self.app = make_app(self.server.url, self.kind, self._visibility)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything."""
        if self._worker is not None:
            self.kill()
        self.app.close()
        self.app.backend.client.connection_pool.disconnect()
        self.client.close()
        self.server.stop()

    def crash_server(self) -> None:
        """Kill -9 the server, and start it again with what it has on disk."""
        self.server.kill()
        self.server.start()
        if not until(lambda: not self.client.info("persistence")["loading"], 60):
            raise RuntimeError("the server has not read its journal within a minute")

    # --- worker ---

    def start(self, *options: str, pool: int = 32, queues: Sequence[str] = (QUEUE,), quiet: bool = True) -> None:
        """Start a worker process. `quiet` leaves out what workers tell each other, which is no part of the wire."""
        silence = ["--without-gossip", "--without-mingle", "--without-heartbeat"] if quiet else []
        with self._log.open("ab") as log:
            self._worker = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "benchmarks.wire_app", "worker", "-P", "threads"),
                    *("-c", str(pool), "-l", "WARNING", "-Q", ",".join(queues), *silence, *options),
                ],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "BENCH_URL": self.server.url,
                    "BENCH_KIND": self.kind,
                    "BENCH_VISIBILITY": str(self._visibility),
                },
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """Kill -9."""
        assert self._worker is not None
        self._worker.kill()
        self._worker.wait()
        self._worker = None

    def stop(self) -> None:
        """End the worker in order."""
        assert self._worker is not None
        self._worker.terminate()
        try:
            self._worker.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._worker.kill()
            self._worker.wait()
        self._worker = None

    def cpu_seconds(self) -> float:
        """Processor time that the worker has used."""
        assert self._worker is not None
        times = psutil.Process(self._worker.pid).cpu_times()
        return float(times.user + times.system)

    # --- tasks ---

    def fill(self, task: str, count: int, args: Sequence[Any] = (), queues: Sequence[str] = (QUEUE,)) -> list[str]:
        """Put tasks on their queues as a producer would, much faster; their ids."""
        self.app.tasks[task].apply_async(args, task_id="TASK-ID", queue="model")
        model = self.client.lpop("model").decode()
        tag = json.loads(model)["properties"]["delivery_tag"]
        ids = [str(uuid.uuid4()) for _ in range(count)]
        together = max(1, FILL_BYTES // len(model))
        for first in range(0, count, together):
            with self.client.pipeline(transaction=False) as pipe:
                for number, task_id in enumerate(ids[first : first + together], first):
                    queue = queues[number % len(queues)]
                    text = model.replace("TASK-ID", task_id).replace(tag, str(uuid.uuid4()))
                    pipe.lpush(queue, text.replace('"model"', f'"{queue}"'))
                pipe.execute()
        return ids

    def answered(self, ids: Sequence[str]) -> int:
        """How many of these have a result."""
        found = 0
        for first in range(0, len(ids), 5000):
            found += sum(
                value is not None for value in self.client.mget([RESULT_KEY + one for one in ids[first : first + 5000]])
            )
        return found

    def left(self, queues: Sequence[str] = (QUEUE,)) -> int:
        """How many messages wait or are not acknowledged."""
        with self.client.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.llen(queue)
            pipe.hlen("unacked")
            return sum(pipe.execute())

    def clear(self) -> None:
        """Forget everything."""
        self.client.flushall()

    def log_end(self) -> str:
        """The end of what the workers said."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""


def until(condition: Callable[[], bool], seconds: float, every: float = 0.01) -> bool:
    """Wait for a condition; whether it came about in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
