"""What is delivered again, and what is not: kills in any order, slow work, lost connections, answers stored already."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from producer.errors import BrokerUnavailable
from tests.faults.deployment import VISIBILITY_S, Deployment, answers, deployed
from tests.integration.wire import cut
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("redelivery"), workers=2, threads=4) as made:
        yield made


def test_slow_work_and_a_long_countdown_are_begun_once_also_through_lost_connections(run: Deployment) -> None:
    both = {
        "slow": run.ask(f"nap {2 * VISIBILITY_S + 1}; slow"),
        "later": run.ask("later", countdown=2 * VISIBILITY_S),
    }
    for _ in range(4):
        wait_until(lambda: run.client.hlen("unacked") == 2, what="workers that hold both")
        cut(run.client)
    assert all("answers" in answer for answer in answers(both, 30).values())
    assert len(run.lines("begin")) == 2
    wait_until(run.settled, what="the acknowledgements")
    assert run.client.keys("laya.delivered.*") == []


def test_an_answer_that_was_stored_is_not_computed_again(run: Deployment) -> None:
    result = run.ask("die-answered")
    assert "answers" in result.get(timeout=20)
    wait_until(lambda: run.deaths == 1, what="the worker's death")
    assert run.client.hlen("unacked") == 1
    wait_until(run.settled, 20, "the acknowledgement of its second delivery")
    assert run.lines("begin").count("die-answered") == 1
    assert run.client.keys("laya.delivered.*") == []


def test_who_was_begun_often_and_put_back_by_another_wire_which_does_not_count_runs_alone(run: Deployment) -> None:
    result = run.ask("twice begun", queue="elsewhere")
    message = json.loads(run.client.rpop("elsewhere"))
    message["headers"]["redelivered"] = message["properties"]["delivery_info"]["redelivered"] = True
    message["properties"]["delivery_info"]["routing_key"] = "laya.english"
    run.client.set(f"laya.delivered.{result.id}", 1, ex=60)
    run.client.lpush("laya.english", json.dumps(message))
    assert "answers" in result.get(timeout=20)
    assert f"Task {result.id} was begun too often to run beside others" in run.log()
    assert f"Task {result.id} was delivered before, and its worker ended: it runs apart, delivery 3" in run.log()
    wait_until(run.settled, what="the acknowledgement")
    assert run.client.keys("laya.delivered.*") == []


def test_workers_and_the_server_are_killed_in_any_order_and_every_request_is_answered(tmp_path: Path) -> None:
    order = random.Random(8).sample(["one", "both", "server"], 3)
    requests: dict[str, Any] = {}
    over = threading.Event()

    def load() -> None:
        for number in itertools.count():
            if over.wait(0.0 if number < 64 else 0.03):
                return
            with suppress(BrokerUnavailable):  # while the server is down
                requests[str(number)] = run.ask(f"nap 0.2; {number}")

    with deployed(tmp_path, workers=2, threads=16, persistent=True, LAYA_MAX_DELIVERIES="5") as run:
        publisher = threading.Thread(target=load)
        publisher.start()
        try:
            for victim in order:
                before = len(run.lines("end"))
                wait_until(lambda before=before: len(run.lines("end")) > before + 20, 30, "work")
                if victim == "server":
                    run.server.kill()
                    run.server.start()
                    wait_until(run.answers_again, 30, "the server")
                    continue
                for worker in {"one": run.workers[:1], "both": run.workers}[victim]:
                    os.kill(worker.pid, signal.SIGKILL)
        finally:
            over.set()
            publisher.join()
        came = answers(requests, 60)
        assert {state: answer for state, answer in came.items() if "answers" not in answer} == {}
        assert run.deaths == 3
        assert len(came) > 100
        wait_until(run.settled, 20, "the acknowledgements")
