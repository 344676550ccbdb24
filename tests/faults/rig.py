"""What the tests of faults are made on: a broker and a result store, each behind a proxy, and workers on them.

The workers go through the proxies and the backend does not, so that a test can take a server from the workers alone.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from laya.simulated import write_checkpoint
from tests.faults.proxy import Proxy
from tests.integration.conftest import Backend, WorkerProcess
from worker.server import EmbeddedServer

VISIBILITY_S = 3
QUESTIONS: dict[str, Any] = {"angry": {"type": "noul", "instructions": "The customer is angry."}}


class Line:
    """A server, and the proxy through which workers reach it."""

    def __init__(self, home: Path, name: str) -> None:
        self.server = EmbeddedServer(directory=home / name, appendonly=True)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.server)
        assert self.server.port is not None
        self.proxy = self._stack.enter_context(Proxy(self.server.port))
        self.client: redis.Redis = self._stack.enter_context(redis.Redis.from_url(self.server.url))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class Rig:
    """Two servers with their proxies, a backend, and workers that serve a simulated `english`; a context manager."""

    def __init__(self, home: Path, *, visibility: int = VISIBILITY_S, pass_ms: float = 2.0) -> None:
        self.home = home
        self.visibility = visibility
        checkpoint = write_checkpoint(home / "english", pass_ms=pass_ms, row_ms=0.1)
        self.checkpoints = f"english={checkpoint}"
        self.broker, self.results = Line(home, "broker"), Line(home, "results")
        self._stack = contextlib.ExitStack()
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        self._stack.enter_context(self.broker)
        self._stack.enter_context(self.results)
        self.backend = self.make_backend()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in (self.broker, self.results):
            line.proxy.cut()  # a worker on a silent connection would take its time to end
        for worker in self._workers:
            worker.end()
        self._stack.close()

    def make_backend(self, broker: str | None = None, results: str | None = None) -> Backend:
        """A backend that reaches the servers directly, or at these URLs."""
        made = Backend(
            broker or self.broker.server.url,
            result_url=results or self.results.server.url,
            checkpoints=self.checkpoints,
            visibility_timeout=self.visibility,
        )
        self._stack.callback(made.close)
        return made

    def worker(self, *options: str, **settings: str) -> WorkerProcess:
        """A worker that is not started yet."""
        environment = {
            "LAYA_BROKER_URL": self.broker.proxy.url,
            "LAYA_RESULT_URL": self.results.proxy.url,
            "LAYA_CHECKPOINTS": self.checkpoints,
            "LAYA_PRELOAD": "english",
            "LAYA_VISIBILITY_TIMEOUT": str(self.visibility),
            "LAYA_HOOKS": "queue_hooks.Trouble",
            "LAYA_RUN_DIR": str(self.home / "run"),
            **settings,
        }
        worker = WorkerProcess(self.home / f"worker{len(self._workers)}.log", environment, *options)
        self._workers.append(worker)
        return worker

    def ask(self, state: str, **options: Any) -> Any:
        """Publish one request; its result."""
        return self.backend.submit_prediction.apply_async((state, QUESTIONS), {"model": "english"}, **options)

    def predict(self, state: str, timeout: float = 30) -> Any:
        """One answer."""
        return self.backend.predict(state, QUESTIONS, timeout, model="english")["answers"]

    def waiting(self) -> int:
        """Messages on the queue that no worker has taken."""
        return int(self.broker.client.llen("laya.english"))

    def settled(self) -> bool:
        """Whether nothing waits and nothing is unacknowledged."""
        return self.waiting() == self.broker.client.hlen("unacked") == 0
