"""Queues that are added and cancelled while there is work, and messages that are too large to show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from producer.errors import PayloadTooLarge
from tests.integration.conftest import Backend
from tests.integration.wire_app import close_app, make_app
from tests.integration.wire_worker import WireWorker
from tests.waiting import wait_until
from worker.server import EmbeddedServer

EVENT_BYTES = 2_000


@pytest.fixture
def app(server: EmbeddedServer) -> Iterator[Celery]:
    made = make_app(server.url)
    yield made
    close_app(made)


def test_queues_are_added_and_cancelled_under_load_and_across_a_lost_connection(
    server: EmbeddedServer, client: redis.Redis, app: Celery, tmp_path: Path
) -> None:
    def publish(queue: str, count: int = 100) -> list[Any]:
        with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer, producer.batch():
            return [app.tasks["echo"].apply_async((number,), queue=queue, producer=producer) for number in range(count)]

    def answered(results: list[Any]) -> None:
        assert [result.get(timeout=30) for result in results] == list(range(len(results)))

    def cut() -> None:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def control(command: str) -> None:
        with app.connection_for_write() as connection:  # those of the pool were cut too
            told = app.control.broadcast(
                command, arguments={"queue": "extra"}, reply=True, timeout=10, limit=1, connection=connection
            )
        assert [answer for reply in told for answer in reply.values() if "ok" in answer]

    with WireWorker(tmp_path, server.url, "-c", "4", "-Q", "wire") as worker:
        first, extra = publish("wire", 300), publish("extra")
        control("add_consumer")
        answered(first)
        answered(extra)
        cut()
        answered(publish("extra"))
        answered(publish("wire"))
        running = publish("wire", 300)
        control("cancel_consumer")
        left = publish("extra", 5)
        answered(running)
        cut()
        answered(publish("wire"))
        assert client.llen("extra") == 5  # cancelled is cancelled, also after a new connection
        control("add_consumer")
        answered(left)
        wait_until(lambda: client.hlen("unacked") == 0, what="the acknowledgements")
        assert worker.terminate() == 0


def test_a_payload_of_ten_megabytes_is_refused_and_events_stay_small(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    backend = Backend(server.url, checkpoints="english=/nowhere")
    questions = {"angry": {"type": "noul", "instructions": "The customer is angry."}}
    try:
        with pytest.raises(PayloadTooLarge):
            backend.submit_prediction.delay("x" * 10_000_000, questions, model="english")
        assert client.llen("laya.english") == 0
        many = [{"state": "x" * 400, "questions": questions, "model": "english"} for _ in range(500)]
        backend.submit_predictions.delay(many)
        headers = json.loads(client.rpop("laya.english"))["headers"]
        # What events, the log and the dashboard show of a message.
        assert len(headers["argsrepr"]) + len(headers["kwargsrepr"]) < EVENT_BYTES
    finally:
        backend.close()
