"""A Celery app with our settings and small tasks, over our transport or the stock one (`WIRE_KIND`)."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Celery, signals

from producer.app import celery_settings
from producer.settings import ProducerSettings
from worker.room import RoomStep


def make_app(url: str, kind: str = "ours", **changes: Any) -> Celery:
    """An app for the server at `url`; `changes` are Celery's own settings."""
    app = Celery("wire", set_as_current=False, fixups=[])
    app.conf.update(
        celery_settings(
            ProducerSettings(broker_url=url, visibility_timeout=int(os.environ.get("WIRE_VISIBILITY", "120")))
        )
    )
    if kind == "stock":
        app.conf.update(broker_transport=None, result_backend=url)
    app.conf.update(
        task_default_queue=os.environ.get("WIRE_QUEUE", "wire"),
        task_track_started=False,
        worker_hijack_root_logger=False,
        broker_transport_options={
            **app.conf.broker_transport_options,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
        },
    )
    app.conf.update(changes)
    app.steps["consumer"].add(RoomStep)
    register(app)
    register_notes(app)
    register_deaths(app)
    return app


def close_app(app: Celery) -> None:
    """Let go of all that `make_app` has opened since; a stock store's connections are closed one by one."""
    close = getattr(app.backend, "close", None) or app.backend.client.connection_pool.disconnect
    close()
    app.close()


def register(app: Celery) -> None:
    @app.task(name="echo", shared=False)
    def echo(value: Any) -> Any:
        return value

    @app.task(name="nap", shared=False)
    def nap(seconds: float, value: Any = None) -> Any:
        time.sleep(seconds)
        return value

    @app.task(name="add", shared=False)
    def add(left: int, right: int) -> int:
        return left + right

    @app.task(name="total", shared=False)
    def total(values: list[int]) -> int:
        return sum(values)

    @app.task(name="boom", shared=False)
    def boom() -> None:
        raise ValueError("as asked")

    @app.task(name="second_time", shared=False, bind=True, default_retry_delay=0.2)
    def second_time(self: Any) -> int:
        if not self.request.retries:
            raise self.retry()
        return int(self.request.retries)


def register_notes(app: Celery) -> None:
    def leave_a_line(task: Any) -> None:
        from celery.worker import state

        task.backend.client.rpush("runs", f"{task.request.id} {os.getpid()} {len(state.reserved_requests)}")

    @app.task(name="note", shared=False, bind=True)
    def note(self: Any, seconds: float = 0.0) -> str:
        """Leave a line for each run in the list `runs`, with the number of messages that the worker holds."""
        leave_a_line(self)
        time.sleep(seconds)
        return str(self.request.id)

    @app.task(name="hold", shared=False, bind=True)
    def hold(self: Any, key: str) -> str:
        """Leave a line as `note` does, and go on when the list of that name has an entry for it."""
        leave_a_line(self)
        while not self.backend.client.lpop(key):
            time.sleep(0.02)
        return str(self.request.id)


def register_deaths(app: Celery) -> None:
    @app.task(name="die_once", shared=False, bind=True)
    def die_once(self: Any) -> str:
        """End the worker as a crash would, the first time."""
        if self.backend.client.set(f"died:{self.request.id}", 1, nx=True):
            os.kill(os.getpid(), signal.SIGKILL)
        return str(self.request.id)

    @app.task(name="die_with_result", shared=False, bind=True)
    def die_with_result(self: Any) -> str:
        """End the worker when the result is stored and the message not yet acknowledged, the first time."""
        self.backend.client.rpush("runs", str(self.request.id))
        return str(self.request.id)

    @signals.task_postrun.connect(sender=die_with_result, weak=False)
    def die(task_id: str, **_: Any) -> None:
        if app.backend.client.set(f"died:{task_id}", 1, nx=True):
            os.kill(os.getpid(), signal.SIGKILL)


if url := os.environ.get("WIRE_URL"):
    app = make_app(
        url, os.environ.get("WIRE_KIND", "ours"), worker_disable_prefetch=os.environ.get("WIRE_PREFETCH") != "1"
    )
