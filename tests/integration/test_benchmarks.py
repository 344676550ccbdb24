"""The benchmarks of shared passes run through and save their figures. How fast anything is says the long run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.celery_process import ROOT


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("batching", "bulk of 64, in process: share of the simulated device's ceiling"),
        ("queue", "share of what the simulated device allows of this"),
    ],
)
def test_a_benchmark_saves_a_list_of_figures(name: str, measured: str, tmp_path: Path) -> None:
    saved = tmp_path / "figures.json"
    run = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json", str(saved)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert run.returncode in {0, 1}, run.stderr  # 1: a bar was missed, as may be in so short a run
    figures = json.loads(saved.read_text(encoding="utf-8"))
    assert measured in {figure["name"] for figure in figures}
    for figure in figures:
        assert figure.keys() == {"name", "value", "unit", "bar", "limit", "holds"}
        assert isinstance(figure["value"], float)
        assert isinstance(figure["holds"], bool)
        assert bool(figure["bar"]) == (figure["limit"] is not None)
