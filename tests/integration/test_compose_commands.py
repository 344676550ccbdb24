"""What docker-compose.yml runs, as processes: the same commands, environment and health checks, without an engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.celery_process import EXIT_SECONDS, READY_SECONDS, ROOT
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BIN = Path(sys.executable).parent


class Service:
    """One service of the file as a process, with its hosts and ports replaced by those of this machine."""

    def __init__(self, name: str, home: Path, replaced: dict[str, str], **environment: str) -> None:
        self._service = SERVICES[name]
        self._replaced = replaced
        self._home = home
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("LAYA_", "FLOWER_"))}
        given = {key: self._here(str(value)) for key, value in self._service["environment"].items()}
        self._environment = clean | given | {"PYTHONPATH": str(ROOT), "LAYA_RUN_DIR": str(home / name)} | environment
        self.log = home / f"{name}.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._words(self._service["command"]),
                env=self._environment,
                cwd=home,  # as in the image: not the repository
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _here(self, text: str) -> str:
        for there, here in self._replaced.items():
            text = text.replace(there, here)
        return text

    def _words(self, command: list[str]) -> list[str]:
        program, *rest = (self._here(word) for word in command)
        return [sys.executable if program == "python" else str(BIN / program), *rest]

    def healthy(self) -> bool:
        """What the file's health check says."""
        kind, *command = self._service["healthcheck"]["test"]
        assert kind == "CMD"
        seconds = float(self._service["healthcheck"]["timeout"].removesuffix("s"))
        run = subprocess.run(
            self._words(command), env=self._environment, cwd=self._home, capture_output=True, timeout=4 * seconds
        )
        return run.returncode == 0

    def wait_until_healthy(self) -> None:
        def look() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            return self.healthy()

        wait_until(look, READY_SECONDS, f"a healthy service ({self.log})")

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(EXIT_SECONDS)


@pytest.fixture(scope="module")
def deployment(
    server: EmbeddedServer, checkpoints: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Service]]:
    """The worker, Flower and the backend of the file, with a server for the broker and one for the cache."""
    home = tmp_path_factory.mktemp("compose")
    ports = {name: str(free_port()) for name in ("5555", "8000")}
    with EmbeddedServer() as cache:
        replaced = {
            "redis://broker:6379/0": server.url,
            "redis://cache:6379/0": cache.url,
            "${LAYA_CHECKPOINTS:-small}": checkpoints,
            "${LAYA_HOOKS:-hooks.SkipCache}": "hooks.SkipCache",
            "0.0.0.0": "127.0.0.1",
            "9100": "0",
            "${FLOWER_USER:-admin}:${FLOWER_PASSWORD:?set FLOWER_PASSWORD to the password of the dashboard}": "a:b",
            **ports,
        }
        running = {
            name: Service(name, home, replaced, WAIT_SECONDS="60") for name in ("worker-cpu", "flower", "backend")
        }
        (home / "ports").write_text("\n".join(ports.values()))
        for service in running.values():
            service.wait_until_healthy()
        yield running | {"home": home}  # type: ignore[dict-item]
        for service in running.values():
            service.end()


def ports_of(deployment: dict[str, Any]) -> list[str]:
    return (deployment["home"] / "ports").read_text().split()


def test_the_backend_is_answered_by_the_worker_and_the_second_time_from_the_cache(deployment: dict[str, Any]) -> None:
    _, port = ports_of(deployment)
    ask = {"state": "I want my money back.", "questions": {"refund": {"type": "noul", "instructions": "A refund?"}}}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=90) as client:
        first = client.post("/predictions", json=ask).json()

        def hit() -> bool:
            body = client.post("/predictions", json=ask).json()
            assert body["result"] == first["result"]
            return bool(body["served"]["hits"])

        wait_until(hit, 20, "a hit")


def test_flower_asks_for_the_password(deployment: dict[str, Any]) -> None:
    port, _ = ports_of(deployment)
    assert httpx.get(f"http://127.0.0.1:{port}/workers").status_code == 401
    assert httpx.get(f"http://127.0.0.1:{port}/workers", auth=("a", "b")).status_code == 200


def test_a_frozen_worker_is_not_healthy(deployment: dict[str, Service]) -> None:
    worker = deployment["worker-cpu"]
    worker.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: not worker.healthy(), 60, "the health check's failure")
    finally:
        worker.process.send_signal(signal.SIGCONT)
    worker.wait_until_healthy()


def test_each_ends_in_order_when_it_is_asked_to(deployment: dict[str, Service]) -> None:
    assert deployment["worker-cpu"].end() == 0
    assert deployment["flower"].end() == 0
    assert deployment["backend"].end() in {0, -signal.SIGTERM}  # uvicorn ends by the signal, when it has finished
    assert not deployment["worker-cpu"].healthy()
