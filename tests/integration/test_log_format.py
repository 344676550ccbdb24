"""A worker's log where no terminal is: every line is one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from laya.simulated import write_checkpoint
from producer.errors import PredictionFailed
from tests.integration.conftest import Backend, WorkerProcess

SECRET = "4111-1111-1111-1111"
QUESTIONS = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"english={write_checkpoint(tmp_path_factory.mktemp('checkpoints') / 'english', pass_ms=1)}"


@pytest.fixture(scope="module")
def log(make_worker: Callable[..., WorkerProcess], backend: Backend) -> str:
    """What a worker logged of its start, an answer, a failure and its end; the banner is for people."""
    worker = make_worker("-c", "2", LAYA_LOG_FORMAT="auto", LAYA_HOOKS="queue_hooks.Trouble").start()
    backend.predict(f"{SECRET}\nsecond line", QUESTIONS, model="english", task_id="good-task")
    with pytest.raises(PredictionFailed):
        backend.predict("raise RuntimeError", QUESTIONS, model="english", task_id="bad-task")
    assert worker.terminate() == 0
    assert SECRET not in worker.text()
    return worker.text()


@pytest.fixture(scope="module")
def lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def test_each_line_says_when_where_and_what(lines: list[dict[str, Any]]) -> None:
    assert len(lines) > 5
    for line in lines:
        assert {"time", "level", "logger", "message", "host", "pid", "thread"} <= line.keys()
        assert line["time"].endswith("+00:00")
    assert any(line["message"].endswith("ready.") for line in lines)


def test_a_line_about_a_task_names_it(lines: list[dict[str, Any]]) -> None:
    failed = [line for line in lines if "bad-task" in line["message"] and line["level"] in {"error", "warning", "info"}]
    assert any("raised" in line["message"] for line in failed)


def test_a_traceback_is_a_part_of_its_line(lines: list[dict[str, Any]]) -> None:
    (line,) = [line for line in lines if "error" in line]
    assert "Traceback" in line["error"]
    assert "RuntimeError" in line["error"]


def test_no_line_of_a_log_is_outside_of_json(log: str) -> None:
    others = [line for line in log.splitlines() if not line.startswith("{")]
    assert not [line for line in others if "Traceback" in line or "INFO" in line or "ERROR" in line]
