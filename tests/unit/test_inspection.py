"""What an operator may ask a worker with Celery's own command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_celery_inspect_knows_the_command_that_asks_for_what_is_resident() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "worker", "inspect", "--list"],
        cwd=ROOT,
        env={**os.environ, "LAYA_BROKER_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert {"resident", "passes"} <= set(run.stdout.replace("|", " ").split())
