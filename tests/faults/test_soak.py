"""The soak and its measurement of memory run through, and lose nothing. How long anything takes says the long run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.celery_process import ROOT


def figures(tmp_path: Path, *options: str) -> dict[str, Any]:
    saved = tmp_path / "figures.json"
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", *options, "--json", str(saved)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert run.returncode in {0, 1}, run.stdout + run.stderr  # 1: a bar was missed
    print(run.stdout)  # shown where a test fails: what was left, and which faults there were
    return {figure["name"]: figure["value"] for figure in json.loads(saved.read_text())}


def test_a_short_soak_loses_nothing_and_answers_nothing_twice(tmp_path: Path) -> None:
    found = figures(tmp_path, "--quick", "--seed", "5")
    assert found["faults"] >= 2
    assert found["requests submitted"] > 100
    for bar in ("lost", "answered twice", "messages left unacknowledged"):
        assert found[bar] == 0, found
    assert found["other outcomes than a request of the kind has"] == 0
    assert found["workers that ended otherwise than by a kill, in order or as hung"] == 0


def test_memory_keys_and_channels_are_as_before_after_many_requests(tmp_path: Path) -> None:
    found = figures(tmp_path, "--memory", "2000")
    assert found["worker's resident memory, end to warm"] < 1.2  # so short a run is hardly warm
    assert found["producer's resident memory, end to warm"] < 1.2
    assert found["keys on the server beyond those before"] <= 0
    assert found["channels of results still subscribed"] <= 1


def test_flower_holds_as_many_tasks_as_it_may_and_its_memory_does_not_grow_with_events(tmp_path: Path) -> None:
    found = figures(tmp_path, "--flower", "12000", "--flower-tasks", "300")
    assert 0 < found["tasks that Flower holds"] <= 300
    # It is about 150 so early, and 1,600 where tasks are kept.
    assert found["Flower's growth for 1,000 events"] < 500, found
    assert found["the senders' resident memory, end to warm"] < 1.2
