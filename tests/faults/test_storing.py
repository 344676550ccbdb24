"""A result that waits for its store while the request's time runs out: there is one outcome."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from celery._state import _task_stack
from celery.exceptions import BackendStoreError
from redis import exceptions as redis

from producer.app import PredictionApp
from producer.errors import DeadlineExceeded
from producer.settings import ProducerSettings
from producer.tasks import register
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port
from worker.storing import patient_store_for


@dataclass
class Store:
    """A worker's result store on a server that is not there yet, and a task's thread."""

    server: EmbeddedServer
    app: PredictionApp
    backend: Any
    task: Any

    def working(self) -> threading.Thread:
        """A thread that has come to the result of the task `late`, and stores it."""

        def compute() -> None:
            self.task.push_request(called_directly=False)  # as in a thread of a worker's pool
            _task_stack.push(self.task)
            try:
                self.backend.store_result("late", {"answers": {}}, "SUCCESS")
            finally:
                _task_stack.pop()
                self.task.pop_request()

        thread = threading.Thread(target=compute)
        thread.start()
        return thread

    def close_with_error(self) -> None:
        """What the watchdog does when the time of `late` is up."""
        self.backend.close_with("late", DeadlineExceeded("its time was up"), SimpleNamespace(_context=None))

    def status(self) -> str:
        """What is stored of `late`."""
        return str(self.backend.get_task_meta("late", cache=False)["status"])


@pytest.fixture
def store() -> Iterator[Store]:
    server = EmbeddedServer(port=free_port())
    url = f"redis://127.0.0.1:{server.port}/0"
    app = PredictionApp(ProducerSettings(broker_url=url))
    app.conf.result_backend = f"{patient_store_for(url)}+{url}"
    task, _ = register(app)
    yield Store(server, app, app.backend, task)
    app.close()


def test_a_result_that_waited_for_its_store_does_not_follow_the_error_that_was_stored_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.storing.RETRY_S", 3.0)  # between its two attempts there is time for the error
    working = store.working()
    wait_until(lambda: store.backend.waiting == 1, what="a result that waits")
    with store.server:
        store.close_with_error()
        working.join(20)
        assert not working.is_alive()
        assert store.status() == "FAILURE"
        assert store.backend.waiting == 0


def test_a_result_is_not_given_up_for_an_error_that_could_not_be_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    trying, failing = threading.Event(), threading.Event()
    write = store.backend.writer.write

    def refused(key: Any, value: Any, expires: int) -> None:
        if threading.current_thread() is not closing:
            write(key, value, expires)
            return
        trying.set()
        assert failing.wait(20)
        raise redis.ConnectionError("the network went silent")

    def close() -> None:
        with pytest.raises(BackendStoreError):
            store.close_with_error()

    monkeypatch.setattr(store.backend.writer, "write", refused)
    closing = threading.Thread(target=close)
    with store.server:
        closing.start()
        assert trying.wait(20)
        working = store.working()
        failing.set()
        for thread in (closing, working):
            thread.join(20)
            assert not thread.is_alive()
        assert store.status() == "SUCCESS"
