"""Worker processes of `wire_app`, for tests that need a whole Celery worker on the wire."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.integration.conftest import ROOT, wait_until


class WireWorker:
    """`celery -A tests.integration.wire_app worker` with a log of its own; `kill` is a kill -9."""

    def __init__(
        self, home: Path, url: str, *options: str, kind: str = "ours", name: str = "wire", **environment: str
    ) -> None:
        self.log = home / f"{name}.log"
        self._options = options
        self._name = name
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("LAYA_", "CELERY_", "WIRE_"))},
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "WIRE_URL": url,
            "WIRE_KIND": kind,
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> Self:
        """Start, without waiting for it to be ready."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "tests.integration.wire_app", "worker", "-l", "INFO"),
                    *("--without-gossip", "--without-mingle", "-P", "threads", "-n", f"{self._name}@%h"),
                    *self._options,
                ],
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return self

    def start(self) -> Self:
        """Start, and wait until it takes tasks."""
        seen = len(self.text())
        self.launch()
        wait_until(lambda: self._is_ready(seen), 60, f"the worker's start ({self.log})")
        return self

    def _is_ready(self, seen: int) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the worker ended at its start:\n{self.text()[-3000:]}"
        return " ready." in self.text()[seen:]

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def signal(self) -> None:
        """SIGTERM, without waiting for what it does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.alive:
            self.kill() if kind else self.stop()
