"""A real server on a free port, real worker processes, and a backend of this process that talks to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis

from producer.app import PredictionApp
from producer.client import aask, ask
from producer.settings import ProducerSettings
from producer.tasks import register
from worker.server import EmbeddedServer

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

READY_SECONDS = 90.0
EXIT_SECONDS = 30.0


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "the condition") -> Any:
    """The first true value of `condition`, asked often, until the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come about within {seconds} s")


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
        self.app.backend.client.close()


class WorkerProcess:
    """`celery -A worker worker` as a process of its own, with its log in a file."""

    def __init__(self, log: Path, environment: Mapping[str, str], *options: str) -> None:
        self.log = log
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LAYA_")},
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "LAYA_DEVICE": "cpu",
            "LAYA_LOG_FORMAT": "text",
            **environment,
        }
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> WorkerProcess:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "worker", "worker", "-l", "INFO"),
                    *("--without-gossip", "--without-mingle", "-n", f"{self.log.stem}@%h"),
                    *self._options,
                ],
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return self

    def start(self) -> WorkerProcess:
        self.launch()
        wait_until(self._is_ready, READY_SECONDS, f"the worker's start ({self.log})")
        return self

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the worker ended at its start:\n{self.text()[-3000:]}"
        return "ready." in self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def exit_code(self, seconds: float = EXIT_SECONDS) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.exit_code()

    def end(self) -> None:
        """Whatever it is doing: end it, by its pid."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server for the tests of one file."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A look into the server."""
    with redis.Redis.from_url(server.url) as connection:
        yield connection


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
