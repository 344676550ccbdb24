"""A small deployment for tests that kill: a server, workers that a supervisor starts again, a backend, a journal."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from laya.simulated import write_checkpoint
from tests.integration.commandline import laya_workers_here
from tests.integration.conftest import Backend, WorkerProcess
from worker.server import EmbeddedServer

VISIBILITY_S = 2
NOUL = {"q": {"type": "noul", "instructions": "It is urgent."}}


class Deployment:
    """Workers for one server; each that ends is started again, as a supervisor does."""

    def __init__(self, home: Path, server: EmbeddedServer, **settings: str) -> None:
        self.server = server
        self.journal = home / "journal"
        self.journal.touch()
        self.deaths = 0
        self._home = home
        self._settings = {
            "LAYA_BROKER_URL": server.url,
            "LAYA_CHECKPOINTS": f"english={write_checkpoint(home / 'checkpoint', pass_ms=1.0, row_ms=0.0)}",
            "LAYA_PRELOAD": "english",
            "LAYA_VISIBILITY_TIMEOUT": str(VISIBILITY_S),
            "LAYA_HOOKS": "tests.faults.deadly_hooks.Deadly",
            "JOURNAL": str(self.journal),
            **settings,
        }
        self.backend = Backend(
            server.url,
            checkpoints=self._settings["LAYA_CHECKPOINTS"],
            visibility_timeout=int(self._settings["LAYA_VISIBILITY_TIMEOUT"]),
            tenant_key=self._settings.get("LAYA_TENANT_KEY"),
        )
        self.client = redis.Redis.from_url(server.url)
        self.workers: list[WorkerProcess] = []
        self._over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise)

    def start(self, workers: int = 1, threads: int = 32, *options: str) -> Deployment:
        """Start workers, and what starts them again."""
        for number in range(workers):
            log = self._home / f"worker{number}.log"
            self.workers.append(WorkerProcess(log, self._settings, "-c", str(threads), *options).launch())
        for worker in self.workers:
            worker.until_ready()
        self._supervisor.start()
        return self

    def ask(self, state: Any, **options: Any) -> Any:
        return self.backend.submit_prediction.apply_async((state, NOUL), options.pop("request", {}), **options)

    def let_go(self, name: str) -> None:
        """Let what waits `until NAME` go on."""
        self.journal.with_suffix(f".{name}").touch()

    def lines(self, verb: str) -> list[str]:
        """The states that began or ended, in order."""
        return [line.split(" ", 2)[2] for line in self.journal.read_text().splitlines() if line.startswith(verb)]

    def begun_by(self, pid: int) -> set[str]:
        """The states that one worker began."""
        start = f"begin {pid} "
        return {line.removeprefix(start) for line in self.journal.read_text().splitlines() if line.startswith(start)}

    def most_at_once(self) -> list[int]:
        """How many requests each process worked on at most, in the order of the processes."""
        at_work: dict[str, list[int]] = {}
        for verb, pid, _ in (line.split(" ", 2) for line in self.journal.read_text().splitlines()):
            counts = at_work.setdefault(pid, [0])
            counts.append(counts[-1] + (1 if verb == "begin" else -1))
        return [max(counts) for counts in at_work.values()]

    def kill_one(self, worker: int = 0) -> None:
        """Kill a worker from outside; what held until a death goes on when it comes back."""
        with self.journal.with_suffix(".deaths").open("a") as deaths:
            os.kill(self.workers[worker].pid, signal.SIGKILL)
            deaths.write(".")

    def alone(self, state: str) -> bool:
        """Whether nothing else began or ended in its process while a state's last run lasted."""
        entries = [line.split(" ", 2) for line in self.journal.read_text().splitlines()]
        last = max(place for place, (verb, _, what) in enumerate(entries) if (verb, what) == ("begin", state))
        same = [(verb, what) for verb, pid, what in entries[last:] if pid == entries[last][1]]
        return same[1:] in ([], [("end", state)]) or same[1] == ("end", state)

    def log(self) -> str:
        return "\n".join(worker.text() for worker in self.workers)

    def settled(self) -> bool:
        """Whether every message is acknowledged."""
        return self.client.hlen("unacked") == self.client.llen("laya.english") == 0

    def answers_again(self) -> bool:
        """Whether the server has read its journal."""
        try:
            return not self.client.info("persistence")["loading"]
        except redis.ConnectionError:
            return False

    def close(self) -> None:
        self._over.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        for worker in self.workers:
            worker.end()
        self.backend.close()
        self.client.close()

    def _supervise(self) -> None:
        while not self._over.wait(0.05):
            for worker in self.workers:
                if not worker.alive:
                    self.deaths += 1
                    worker.launch()


def dead(run: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`laya-workers dead`, in this process, which has imported what takes a second already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.cli.dead.app", run.backend.app)
        return laya_workers_here("dead", *arguments)


@contextmanager
def deployed(
    home: Path,
    *,
    workers: int = 1,
    threads: int = 32,
    persistent: bool = False,
    options: Sequence[str] = (),
    **settings: str,
) -> Iterator[Deployment]:
    """A deployment on a server of its own, which keeps a journal if it is to be killed."""
    keeping = {"directory": home / "data", "options": {"appendfsync": "always"}} if persistent else {}
    with EmbeddedServer(appendonly=persistent, **keeping) as server:
        made = Deployment(home, server, **settings)
        try:
            yield made.start(workers, threads, *options)
        finally:
            made.close()


def answers(results: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What each result came to: its answer, or its error."""
    found: dict[str, Any] = {}
    for name, result in results.items():
        try:
            found[name] = result.get(timeout=seconds)
        except Exception as error:  # noqa: BLE001 - the tests look at it
            found[name] = error
    return found
