"""Whether memory grows: many requests through one worker and one producer, and what is left when they are answered."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import psutil
import redis
from kombu.utils.uuid import uuid

from benchmarks.crew import Crew
from benchmarks.figures import Figure, at_most, told
from laya.simulated import write_checkpoint
from producer.app import PredictionApp
from producer.settings import ProducerSettings
from producer.tasks import register
from worker.server import EmbeddedServer

TOGETHER: Final = 100  # messages published in one pipeline
UNDER_WAY: Final = 400
RESULT_TTL_S: Final = 5
WARM: Final = 0.25
"""Share of the requests after which caches and pools are full, and memory is measured first."""

QUESTIONS: Final[dict[str, Any]] = {"angry": {"type": "noul", "instructions": "The customer is angry."}}


def memory(home: Path, number: int) -> list[Figure]:
    """Send `number` requests, and compare resident memory after the first quarter with that at the end."""
    checkpoints = f"english={write_checkpoint(home / 'english', pass_ms=0.2, row_ms=0.0)}"
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        environment = {
            "LAYA_BROKER_URL": server.url,
            "LAYA_CHECKPOINTS": checkpoints,
            "LAYA_PRELOAD": "english",
            "LAYA_RESULT_TTL": str(RESULT_TTL_S),
            "LAYA_RUN_DIR": str(home / "run"),
        }
        app = PredictionApp(ProducerSettings(broker_url=server.url, checkpoints=checkpoints, result_ttl=RESULT_TTL_S))
        with Crew(home, ("worker",), environment) as crew:
            _wait(lambda: " ready." in crew.log("worker"), 60)
            task, _ = register(app)
            _send(app, task, 100)
            known = set(client.keys())
            worker = psutil.Process(crew.pid("worker"))
            here = psutil.Process(os.getpid())
            _send(app, task, int(number * WARM))
            before = worker.memory_info().rss, here.memory_info().rss
            started = time.monotonic()
            _send(app, task, number - int(number * WARM))
            seconds = time.monotonic() - started
            after = worker.memory_info().rss, here.memory_info().rss
            _expire(client)
            left = sorted(set(client.keys()) - known)
            channels = len(client.pubsub_channels("celery-task-meta-*"))
        app.close()
    if left:
        print("left on the server:", *left[:20], sep="\n  ")
    return [
        told("requests a second", (number - int(number * WARM)) / seconds, "1/s"),
        told("worker's resident memory", after[0] / 2**20, "MiB"),
        at_most("worker's resident memory, end to warm", after[0] / before[0], 1.05),
        at_most("producer's resident memory, end to warm", after[1] / before[1], 1.05),
        at_most("keys on the server beyond those before", len(left), 0, ""),
        at_most("channels of results still subscribed", channels, 1, ""),  # the watch's own
    ]


def _send(app: PredictionApp, task: Any, number: int) -> None:
    """Publish requests in pipelines, never more than `UNDER_WAY` unanswered, and wait for every answer."""
    waiting: deque[Future[Any]] = deque()
    for first in range(0, number, TOGETHER):
        with app.producer_or_acquire() as producer, producer.batch():
            for place in range(first, min(number, first + TOGETHER)):
                task_id = uuid()
                waiting.append(app.backend.watch.expect(task_id, 120))
                task.apply_async(
                    (f"ticket {place}", QUESTIONS), {"model": "english"}, task_id=task_id, producer=producer
                )
        while len(waiting) > UNDER_WAY:
            waiting.popleft().result(120)
    for future in waiting:
        future.result(120)


def _expire(client: redis.Redis) -> None:
    """Wait until the results have gone, with what goes with them."""
    _wait(lambda: not client.keys("celery-task-meta-*"), RESULT_TTL_S + 30)
    _wait(lambda: not client.keys("laya.bell.*"), 30)


def _wait(condition: Any, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError("what the measurement waits for did not come about")
        time.sleep(0.1)
