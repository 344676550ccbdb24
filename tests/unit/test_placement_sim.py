"""The simulated fleet: its figures, that it is the same each time, and that placement starves nobody in it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fleet_policies import POLICIES, Placed
from benchmarks.fleet_sim import Plan, windows
from benchmarks.placement_sim import longest_allowed
from worker.placement_view import Rules

ROOT = Path(__file__).resolve().parents[2]

SMALL = Plan(workers=30, checkpoints=12, seconds=60.0, shift_at=30.0, life_s=200.0)
SCARCE = Plan(workers=6, checkpoints=20, seconds=90.0, busy=0.2, shift_at=45.0, life_s=1e9)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_gives_the_same_outcome_again(policy: str) -> None:
    plan = replace(SMALL, seconds=20.0, shift_at=10.0)
    assert POLICIES[policy](plan, 3).run() == POLICIES[policy](plan, 3).run()


def test_every_policy_sees_the_same_messages_and_the_same_deaths() -> None:
    outcomes = [policy(SMALL, 3).run() for policy in POLICIES.values()]
    assert len({outcome.deaths for outcome in outcomes}) == 1
    # The message that a worker dies with is sent once more, and which one that is differs.
    sent = [len(outcome.waits) + len(outcome.waiting) for outcome in outcomes]
    assert max(sent) - min(sent) <= outcomes[0].deaths


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("plan", [SMALL, SCARCE], ids=["workers die", "more checkpoints than memory"])
def test_no_message_waits_longer_than_the_bound(plan: Plan, seed: int) -> None:
    outcome = Placed(plan, seed).run()
    assert outcome.deaths == 0 or plan is SMALL
    assert outcome.longest <= longest_allowed(plan)


@pytest.mark.parametrize("seed", range(3))
def test_where_memory_is_scarce_no_checkpoint_is_evicted_before_its_dwell_time(seed: int) -> None:
    outcome = Placed(SCARCE, seed).run()
    assert outcome.evictions > 10
    assert min(outcome.dwells) >= Rules().dwell_s
    places = SCARCE.workers * SCARCE.capacity
    assert outcome.loads <= places * (1 + SCARCE.seconds / Rules().dwell_s)


def test_waits_are_back_to_nothing_some_load_times_after_the_popularities_changed() -> None:
    plan = replace(SMALL, life_s=1e9)
    waits = dict(windows(Placed(plan, 1).run(), plan, 5.0))
    assert waits[32.5] > 1.0
    assert max(waits[at] for at in (52.5, 57.5)) < plan.load_s


def test_the_command_writes_the_figures_of_all_three_policies(tmp_path: Path) -> None:
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.placement_sim", "--quick", "--json", str(figures), "--plot", str(picture)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    known = {figure["name"]: figure for figure in json.loads(figures.read_text(encoding="utf-8"))}
    for policy in POLICIES:
        for what in ("loads", "99 % wait less than", "longest wait", "evictions"):
            assert known[f"{policy}: {what}"]["value"] >= 0
    assert all(figure["holds"] for figure in known.values())
    assert picture.read_bytes().startswith(b"\x89PNG")
