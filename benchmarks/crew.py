"""Worker processes under a supervisor that starts again what ends, for benchmarks that kill them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from worker import leash

ROOT = Path(__file__).resolve().parents[1]
END_S = 60.0


class Crew:
    """As many workers as there are names; each that ends is started again. A context manager that leaves none."""

    def __init__(self, home: Path, names: tuple[str, ...], environment: Mapping[str, str], *options: str) -> None:
        """Describe the workers; their logs lie in `home`, one for each name."""
        self.ends: Counter[int] = Counter()
        """Exit codes of those that ended, a negative one where a signal did it."""
        self._home = home
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("LAYA_")},
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "LAYA_DEVICE": "cpu",
            **environment,
        }
        self._options = options
        self._names = names
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        """Start them all, without waiting for them."""
        for name in self._names:
            self._start(name)
        self._supervisor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them, in order if they will."""
        self._over.set()
        self._supervisor.join()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the workers."""
        return self._names

    def pid(self, name: str) -> int:
        """Of the process that has a worker's name now."""
        return self._processes[name].pid

    def log(self, name: str) -> str:
        """What a worker has said, over all its lives."""
        path = self._home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a worker, if it runs."""
        with self._lock:
            if self._processes[name].poll() is None:
                self._processes[name].send_signal(number)

    def _start(self, name: str) -> None:
        with (self._home / f"{name}.log").open("ab") as output:
            # On a leash: what is killed here must not leave workers behind.
            self._processes[name] = leash.start(
                "celery",
                ["-A", "worker", "worker", "-l", "INFO", "-n", f"{name}@%h", *self._options],
                environment=self._environment,
                output=output,
            )

    def _supervise(self) -> None:
        while not self._over.wait(0.1):
            with self._lock:
                for name, process in self._processes.items():
                    status = process.poll()
                    if status is not None:
                        self.ends[status] += 1
                        self._start(name)
