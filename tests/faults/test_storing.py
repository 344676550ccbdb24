"""A result that waits for its store while the request's time runs out: there is one outcome."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from celery._state import _task_stack

from producer.app import PredictionApp
from producer.errors import DeadlineExceeded
from producer.settings import ProducerSettings
from producer.tasks import register
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port
from worker.storing import patient_store_for


def test_a_result_that_waited_for_its_store_does_not_follow_the_error_that_was_stored_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.storing.RETRY_S", 3.0)  # between its two attempts there is time for the error
    server = EmbeddedServer(port=free_port())
    url = f"redis://127.0.0.1:{server.port}/0"
    app = PredictionApp(ProducerSettings(broker_url=url))
    app.conf.result_backend = f"{patient_store_for(url)}+{url}"
    task, _ = register(app)
    store = app.backend

    def compute() -> None:
        task.push_request(called_directly=False)  # as in a thread of a worker's pool
        _task_stack.push(task)
        try:
            store.store_result("late", {"answers": {}}, "SUCCESS")
        finally:
            _task_stack.pop()
            task.pop_request()

    working = threading.Thread(target=compute)
    working.start()
    wait_until(lambda: store.waiting == 1, what="a result that waits")
    with server:
        store.close_with("late", DeadlineExceeded("its time was up"), SimpleNamespace(_context=None))
        working.join(20)
        assert not working.is_alive()
        assert store.get_task_meta("late", cache=False)["status"] == "FAILURE"
        assert store.waiting == 0
        app.close()
        store.client.close()
