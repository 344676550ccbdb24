"""`python -m benchmarks.transport --quick` runs through, and loses nothing. How fast it is says the long run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.celery_process import ROOT


def test_the_benchmark_of_the_wire_runs_and_loses_nothing(tmp_path: Path) -> None:
    saved = tmp_path / "figures.json"
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.transport", "--quick", "--json", str(saved)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert run.returncode in {0, 1}, run.stderr  # 1: a bar was missed, as may be in so short a run
    figures = {figure["name"]: figure for figure in json.loads(saved.read_text())}
    assert all(figure.keys() == {"name", "value", "unit", "bar", "limit", "holds"} for figure in figures.values())
    lost = [figure["value"] for name, figure in figures.items() if name.startswith("lost") and name.endswith("ours")]
    assert lost == [0]
