"""The Celery app that `benchmarks.transport` loads workers and producers with: ours, or all of it stock Celery.

Both have the same settings; they differ in the transport, the result store, and the room that a worker tells.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from producer.app import celery_settings
from producer.settings import ProducerSettings
from worker.room import RoomStep

QUEUE = "bench"


def make_app(url: str, kind: str, visibility_timeout: int = 120) -> Celery:
    """An app for the server at `url`; `kind` is `ours` or `stock`."""
    app = Celery("bench", set_as_current=False, fixups=[])
    app.conf.update(celery_settings(ProducerSettings(broker_url=url, visibility_timeout=visibility_timeout)))
    app.conf.update(
        task_default_queue=QUEUE,
        task_track_started=False,
        broker_transport_options={
            **app.conf.broker_transport_options,
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
        },
    )
    if kind == "stock":
        app.conf.update(broker_transport=None, result_backend=url)
    app.steps["consumer"].add(RoomStep)

    @app.task(name="noop", shared=False)  # type: ignore[untyped-decorator]  # celery has no types
    def noop(_: Any = None) -> None:
        """Nothing: what is measured is the way there and back."""

    @app.task(name="nap", shared=False)  # type: ignore[untyped-decorator]
    def nap(seconds: float) -> None:
        time.sleep(seconds)

    return app


if url := os.environ.get("BENCH_URL"):
    app = make_app(url, os.environ["BENCH_KIND"], int(os.environ["BENCH_VISIBILITY"]))
