"""A Celery worker as a process of its own, as tests need it: started, asked to end, killed, its log read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]

READY_SECONDS = 90.0
EXIT_SECONDS = 30.0

SETTINGS = ("LAYA_", "CELERY_", "WIRE_")
"""How variables begin that a worker gets from its test alone."""


class CeleryProcess:
    """`celery -A APP worker` with a log of its own, which goes on when it is started again. A context manager.

    The node is named after the log.
    """

    def __init__(self, app: str, log: Path, environment: Mapping[str, str], *options: str) -> None:
        """Describe it; `options` are Celery's own."""
        self.log = log
        self._command = [
            *(sys.executable, "-m", "celery", "-A", app, "worker", "-l", "INFO"),
            *("--without-gossip", "--without-mingle", "-n", f"{log.stem}@%h", *options),
        ]
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)},
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **environment,
        }
        self._said = 0
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> Self:
        """Start it, without waiting for it to be ready."""
        self._said = len(self.text())
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return self

    def start(self) -> Self:
        """Start it, and wait until it takes messages."""
        return self.launch().until_ready()

    def until_ready(self) -> Self:
        """Wait until it takes messages, after its last launch."""
        wait_until(self._is_ready, READY_SECONDS, f"the worker's start ({self.log})")
        return self

    def _is_ready(self) -> bool:
        assert self.alive, f"the worker ended at its start:\n{self.text()[-3000:]}"
        return " ready." in self.text()[self._said :]

    def text(self) -> str:
        """What it has said, over all its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def exit_code(self, seconds: float = EXIT_SECONDS) -> int:
        """Wait for its end."""
        assert self.process is not None
        return self.process.wait(seconds)

    def ask_to_end(self) -> None:
        """SIGTERM, without waiting for what it does."""
        assert self.process is not None
        self.process.terminate()

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.ask_to_end()
        return self.exit_code()

    def kill(self) -> None:
        """SIGKILL, as the system does to whoever takes too much memory."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Whatever it is doing: end it, in order if it will."""
        if not self.alive:
            return
        self.ask_to_end()
        try:
            self.exit_code()
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
