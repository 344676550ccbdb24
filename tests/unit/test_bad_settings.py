"""A setting that cannot be read: one line for whoever typed a command, an error for whoever imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "LAYA_CHECKPOINTS": "english=", "LAYA_MAX_LOADED": "none"},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("command", [("worker",), ("inspect", "ping")])
def test_celerys_command_line_ends_with_one_line_that_names_the_variables(command: tuple[str, ...]) -> None:
    ended = run("-m", "celery", "-A", "worker", *command)
    assert ended.returncode == os.EX_CONFIG
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert "LAYA_CHECKPOINTS: 'english' has no source" in line
    assert "LAYA_MAX_LOADED: " in line


def test_importing_the_app_raises() -> None:
    ended = run(
        "-c", "from pydantic import ValidationError\ntry:\n    import worker.app\nexcept ValidationError: print(1)"
    )
    assert ended.stdout == "1\n", ended.stderr


@pytest.mark.parametrize("command", [("laya-workers", "worker"), ("celery", "-A", "worker", "worker")], ids=" ".join)
def test_a_hook_may_lie_where_the_worker_is_started(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "own_hooks.py").write_text("def found(): raise RuntimeError('it was found')\n", encoding="utf-8")
    script, *arguments = command
    ended = subprocess.run(
        [Path(sys.executable).parent / script, *arguments],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "LAYA_HOOKS": "own_hooks.found", "LAYA_CHECKPOINTS": "english=/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "LAYA_HOOKS: own_hooks.found() failed: RuntimeError: it was found" in ended.stderr
    assert ended.returncode == os.EX_CONFIG
