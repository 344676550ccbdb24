"""Requests that kill their worker: found by quarantine, dead-lettered, and nobody else's answer is lost."""

from __future__ import annotations

import json
from pathlib import Path

from producer.errors import LayaError, PoisonedRequest
from tests.faults.deployment import NOUL, answers, dead, deployed
from tests.waiting import wait_until
from worker.suspects import company

NEIGHBOURS = 24
MOST = 2
MOST_BY_DEFAULT = 3


def test_requests_that_kill_workers_are_dead_lettered_their_neighbours_answered_and_a_cured_one_too(
    tmp_path: Path,
) -> None:
    with deployed(tmp_path, workers=2, threads=16, LAYA_MAX_DELIVERIES=str(MOST)) as run:
        # They are at work when it strikes, so those of one worker at least come back as suspects too.
        neighbours = {f"hold; {number}": run.ask(f"hold; {number}") for number in range(NEIGHBOURS)}
        wait_until(lambda: len(run.lines("begin")) == NEIGHBOURS, what="neighbours at work")
        killers = {state: run.ask(state) for state in ("die SIGSEGV", "sick")}
        together = [{"state": state, "questions": NOUL} for state in ("one", "exit 3", "other")]
        bulk = run.backend.submit_predictions.delay(together)
        came = answers({**killers, **neighbours, "bulk": bulk}, 120)

        one, error, other = came.pop("bulk")
        assert "answers" in one
        assert "answers" in other
        assert type(LayaError.from_entry(error)) is PoisonedRequest
        # Its first delivery counts also where another killer was faster than it.
        assert 1 <= run.lines("begin").count("exit 3") <= MOST

        for state, killer in killers.items():
            error = came.pop(state)
            assert isinstance(error, PoisonedRequest)
            assert (error.task_id, error.deliveries) == (killer.id, MOST)
            assert error.fields["questions"] == 1
            assert error.fields["bytes"] > 0
            assert state not in str(error) + str(error.fields)
            assert run.lines("begin").count(state) <= MOST
            assert run.alone(state)
        assert run.deaths <= MOST * (len(killers) + 1)
        assert {state: answer for state, answer in came.items() if "answers" not in answer} == {}
        twice = [state for state in neighbours if run.lines("begin").count(state) > 1]
        assert twice
        assert all(run.alone(state) for state in twice)
        wait_until(run.settled, what="acknowledgements")
        counts = {f"laya.delivered.{killer.id}".encode() for killer in killers.values()}
        assert set(run.client.keys("laya.delivered.*")) == counts
        assert not any(state in run.log() for state in killers)

        listed = json.loads(dead(run, "list", "--json").stdout)
        assert {letter["kind"] for letter in listed} == {"poisoned"}
        assert {letter["id"] for letter in listed} == {f"{bulk.id}.1", *(killer.id for killer in killers.values())}
        run.journal.with_suffix(".cured").touch()
        cured, deaths = killers["sick"], run.deaths
        assert dead(run, "retry", cured.id).returncode == 0
        again = run.backend.submit_prediction.AsyncResult(cured.id)
        assert "answers" in again.get(timeout=20)
        assert run.deaths == deaths
        assert dead(run, "show", cured.id).returncode == 1


def test_what_died_beside_a_killer_runs_among_few_and_the_killer_in_the_end_alone(tmp_path: Path) -> None:
    killer = "hold; die SIGKILL"
    with deployed(tmp_path, threads=16) as run:
        results = {state: run.ask(state) for state in [f"hold; nap 0.1; {number}" for number in range(15)]}
        results[killer] = run.ask(killer)
        wait_until(lambda: len(run.lines("begin")) == 16, what="16 at work")
        run.kill_one()
        came = answers(results, 60)
        assert isinstance(came.pop(killer), PoisonedRequest)
        assert {state: answer for state, answer in came.items() if "answers" not in answer} == {}
        assert run.lines("begin").count(killer) == MOST_BY_DEFAULT
        assert run.deaths == MOST_BY_DEFAULT
        assert run.alone(killer)
        few = company(1, MOST_BY_DEFAULT, 16)
        again = [state for state in came if run.lines("begin").count(state) > 2]
        assert len(again) < few
        assert all(run.alone(state) for state in again)
        _, *later = run.most_at_once()
        assert max(later) == few
