"""Real worker processes on a real server, and a backend of this process that talks to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection

from producer.app import PredictionApp
from producer.client import aask, ask
from producer.settings import ProducerSettings
from producer.tasks import register
from tests.celery_process import ROOT, CeleryProcess
from tests.integration.wire import connected
from worker.server import EmbeddedServer

HERE = Path(__file__).resolve().parent


class Backend:
    """What a web backend has: the two tasks, `predict` and `apredict`, for one server."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.app = PredictionApp(ProducerSettings(broker_url=url, **settings))
        self.submit_prediction, self.submit_predictions = register(self.app)
        self.results = self.app.backend.watch

    def predict(self, state: Any, questions: Any, timeout: float | None = 30, **options: Any) -> dict[str, Any]:
        return ask(self.submit_prediction, state, questions, timeout, options)

    async def apredict(self, state: Any, questions: Any, timeout: float | None = 30, **options: Any) -> dict[str, Any]:
        return await aask(self.submit_prediction, state, questions, timeout, options)

    def close(self) -> None:
        self.app.close()


class WorkerProcess(CeleryProcess):
    """`celery -A worker worker` on the CPU, with the hooks of the tests within reach."""

    def __init__(self, log: Path, environment: Mapping[str, str], *options: str) -> None:
        """Describe it; `environment` are its settings, and `options` Celery's own."""
        own = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
            "LAYA_DEVICE": "cpu",
            "LAYA_LOG_FORMAT": "text",
        }
        super().__init__("worker", log, {**own, **environment}, *options)


@pytest.fixture(scope="module")
def checkpoints(golden_checkpoints: dict[str, Path]) -> str:
    """The golden checkpoints as LAYA_CHECKPOINTS lists them."""
    return ",".join(f"{name}={path}" for name, path in golden_checkpoints.items())


@pytest.fixture(scope="module")
def backend(server: EmbeddedServer, checkpoints: str) -> Iterator[Backend]:
    """A backend that knows the golden checkpoints."""
    made = Backend(server.url, checkpoints=checkpoints)
    yield made
    made.close()


@pytest.fixture(scope="module")
def make_worker(
    server: EmbeddedServer, checkpoints: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., WorkerProcess]]:
    """Makes worker processes for the file's server; each is ended with the file if it has not ended before."""
    made: list[WorkerProcess] = []
    home = tmp_path_factory.mktemp("workers")

    def make(*options: str, **settings: str) -> WorkerProcess:
        environment = {
            "LAYA_BROKER_URL": server.url,
            "LAYA_CHECKPOINTS": checkpoints,
            "LAYA_MAX_LOADED": "3",
            **settings,
        }
        worker = WorkerProcess(home / f"worker{len(made)}.log", environment, *options)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.end()


@pytest.fixture
def emptied(client: redis.Redis) -> None:
    """The file's server, with nothing on it."""
    client.flushall()


@pytest.fixture
def ours(server: EmbeddedServer) -> Iterator[Connection]:
    """A connection on the queue's wire."""
    with connected(server.url) as connection:
        yield connection


@pytest.fixture
def questions() -> dict[str, Any]:
    """Three questions, one of each type."""
    return {
        "team": {
            "type": "choice",
            "instructions": "Which team should answer?",
            "criteria": {"billing": "invoices and refunds", "support": "broken things", "sales": None},
        },
        "urgency": {"type": "score", "instructions": "How urgent is it?", "criteria": ["low", "mid", "high"]},
        "angry": {"type": "noul", "instructions": "The customer is angry."},
    }
