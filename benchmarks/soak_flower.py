"""Whether the dashboard's memory grows: events of several workers at Flower as it is configured here, while it is read.

The events are what workers of ours send of their tasks, sent by Celery's own dispatchers through a real server; nothing
computes. What workers put into an event is the tests' matter.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from kombu.utils.uuid import uuid

from benchmarks.figures import Figure, at_most, told
from producer.app import PredictionApp
from producer.settings import ProducerSettings
from worker.server import EmbeddedServer, free_port

WORKERS: Final = 6
TOGETHER: Final = 1_500
"""Events that are sent before it is waited for Flower: a server drops a reader that lags behind by megabytes."""

WARM: Final = 0.5
"""Share of the events after which Flower holds as many tasks as it may, and memory is measured first."""

LOGIN: Final = "soak:soak"

TASK: Final[dict[str, Any]] = {
    "name": "laya.submit_prediction",
    "args": "english text of 312 characters; team, urgency, angry",
    "kwargs": "{'model': 'english'}",
    "retries": 0,
    "eta": None,
    "expires": None,
}


def flower_memory(home: Path, number: int, tasks: int) -> list[Figure]:
    """Send `number` events at a Flower that keeps `tasks` tasks, and compare its memory, and that of the senders."""
    port = free_port()
    with EmbeddedServer() as server, _flower(home, server.url, port, tasks) as flower, ExitStack() as stack:
        app = PredictionApp(ProducerSettings(broker_url=server.url))
        workers = [
            app.events.Dispatcher(stack.enter_context(app.connection_for_write()), hostname=f"worker{place}@soak")
            for place in range(WORKERS)
        ]
        page = _Page(port)
        _until(page.answers, 60)
        _listened_to(workers, page)
        here = psutil.Process(os.getpid())
        sent, reads = _send(workers, page, 0, int(number * WARM))
        before = flower.memory_info().rss, here.memory_info().rss
        started = time.monotonic()
        sent, more = _send(workers, page, sent, number)
        seconds = time.monotonic() - started
        after = flower.memory_info().rss, here.memory_info().rss
        kept = len(re.findall(r'"uuid"', page.read(f"/api/tasks?limit={2 * tasks}")))
        app.close()
    growth = (after[0] - before[0]) / 1024 / (number * (1 - WARM) / 1000)
    return [
        told("events a second, as Flower took them", number * (1 - WARM) / seconds, "1/s"),
        told("slowest page of tasks meanwhile", 1000 * max(*reads, *more), "ms"),
        told("Flower's resident memory", after[0] / 2**20, "MiB"),
        told("Flower's growth for 1,000 events", growth, "KiB"),
        at_most("Flower's resident memory, end to warm", after[0] / before[0], 1.05),
        at_most("the senders' resident memory, end to warm", after[1] / before[1], 1.05),
        at_most("tasks that Flower holds", kept, tasks, ""),
    ]


class _Page:
    """Flower's pages, with the login."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._login = "Basic " + base64.b64encode(LOGIN.encode()).decode()

    def read(self, path: str) -> str:
        request = urllib.request.Request(self._url + path, headers={"Authorization": self._login})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    def answers(self) -> bool:
        try:
            return bool(self.read("/metrics"))
        except OSError:
            return False

    def has_taken(self, number: int) -> bool:
        """Whether Flower has taken in so many events of tasks."""
        counts = re.findall(r'^flower_events_total\{[^}]*type="task-[^}]*\} (\S+)', self.read("/metrics"), re.MULTILINE)
        return sum(int(float(count)) for count in counts) >= number


@contextmanager
def _flower(home: Path, url: str, port: int, tasks: int) -> Iterator[psutil.Process]:
    """Flower with our configuration, and the process that is measured."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAYA_", "FLOWER_"))}
    own = {"LAYA_BROKER_URL": url, "FLOWER_BASIC_AUTH": LOGIN, "FLOWER_MAX_TASKS": str(tasks)}
    with (home / "flower.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "worker", "flower"),
                *("--address=127.0.0.1", f"--port={port}", "--logging=error"),
            ],
            env=clean | own,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def _listened_to(workers: list[Any], page: _Page) -> None:
    """Wait until Flower has subscribed to events: until then they go nowhere."""

    def heard() -> bool:
        for worker in workers:
            worker.send("worker-heartbeat", freq=2.0, active=0, processed=0)
        return "worker0@soak" in page.read("/metrics")

    _until(heard, 60)


def _send(workers: list[Any], page: _Page, sent: int, number: int) -> tuple[int, list[float]]:
    """Send events of tasks until there were `number`, and read a page now and then; how many, and how long it took."""
    reads = [0.0]
    while sent < number:
        for _ in range(min(TOGETHER, number - sent) // 3 + 1):
            worker, about = workers[sent // 3 % len(workers)], {"uuid": uuid()}
            worker.send("task-received", **about, root_id=about["uuid"], **TASK)
            worker.send("task-started", **about)
            worker.send("task-succeeded", **about, result="team=billing (0.93); urgency=2; angry=0.71", runtime=0.012)
            sent += 3
        for worker in workers:
            worker.send("worker-heartbeat", freq=2.0, active=1, processed=sent)
        _until(partial(page.has_taken, sent), 60)
        started = time.monotonic()
        page.read("/api/tasks?limit=50")
        reads.append(time.monotonic() - started)
    return sent, reads


def _until(condition: Any, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError("Flower did not take what was sent: was it cut off for being too slow?")
        time.sleep(0.05)
