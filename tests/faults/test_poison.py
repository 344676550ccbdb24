"""Requests that kill their worker: found by quarantine, dead-lettered, and nobody else's answer is lost."""

from __future__ import annotations

import json
from pathlib import Path

from producer.errors import PoisonedRequest
from tests.faults.deployment import answers, deployed
from tests.integration.commandline import laya_workers
from tests.integration.conftest import wait_until

NEIGHBOURS = 24


def test_a_request_that_kills_its_worker_is_dead_lettered_and_its_neighbours_are_answered(tmp_path: Path) -> None:
    poison = "die SIGSEGV"
    with deployed(tmp_path) as run:
        # They are all at work when it strikes, so each of them comes back as a suspect too.
        neighbours = {f"hold; {number}": run.ask(f"hold; {number}") for number in range(NEIGHBOURS)}
        wait_until(lambda: len(run.lines("begin")) == NEIGHBOURS, what="neighbours at work")
        killer = run.ask(poison)
        came = answers({poison: killer, **neighbours}, 60)
        error = came.pop(poison)
        assert isinstance(error, PoisonedRequest)
        assert (error.task_id, error.deliveries) == (killer.id, 3)
        assert error.fields["questions"] == 1
        assert error.fields["bytes"] > 0
        assert "SIGSEGV" not in str(error) + str(error.fields)
        assert [state for state, answer in came.items() if "answers" not in answer] == []
        assert run.deaths == run.lines("begin").count(poison) == 3
        assert [state for state in neighbours if not run.alone(state)] == []
        wait_until(run.settled, what="acknowledgements")
        assert run.client.keys("laya.delivered.*") == [f"laya.delivered.{killer.id}".encode()]
        assert "SIGSEGV" not in run.log()


def test_two_killers_at_once_meet_two_workers_and_a_retry_of_one_is_answered(tmp_path: Path) -> None:
    with deployed(tmp_path, workers=2, threads=4, LAYA_MAX_DELIVERIES="2") as run:
        killers = {state: run.ask(state) for state in ("exit 1", "die-until 4")}
        healthy = {str(number): run.ask(str(number)) for number in range(8)}
        came = answers({**killers, **healthy}, 60)
        assert [type(came.pop(state)) for state in killers] == [PoisonedRequest] * 2
        assert all("answers" in answer for answer in came.values())
        assert run.deaths == sum(len([state for state in run.lines("begin") if state == one]) for one in killers) == 4

        urls = {"LAYA_BROKER_URL": run.server.url}
        listed = json.loads(laya_workers("dead", "list", "--json", **urls).stdout)
        assert {letter["id"] for letter in listed} == {result.id for result in killers.values()}
        assert {letter["kind"] for letter in listed} == {"poisoned"}
        cured = killers["die-until 4"]
        assert laya_workers("dead", "retry", cured.id, **urls).returncode == 0
        again = run.backend.submit_prediction.AsyncResult(cured.id)
        assert "answers" in again.get(timeout=20)
        assert run.deaths == 4
        (left,) = json.loads(laya_workers("dead", "list", "--json", **urls).stdout)
        assert left["id"] == killers["exit 1"].id
