"""`laya-workers` where output and input are not what a terminal has: always one line and a code, never a traceback."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.integration.commandline import laya_workers

COMMAND = f"{sys.executable} -m worker.cli"
SHELL = ("/bin/sh", "-c")
NOWHERE = "redis://127.0.0.1:1/0"


def test_what_an_encoding_lacks_is_shown_as_a_question_mark() -> None:
    ended = laya_workers("checkpoints", COLUMNS="40", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "?" in ended.stdout


@pytest.mark.parametrize("command", ["checkpoints", "--help"])
def test_an_output_that_cannot_be_written_is_one_line(command: str) -> None:
    ended = laya_workers(command=(*SHELL, f"{COMMAND} {command} >/dev/full"))
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in ended.stderr


@pytest.mark.parametrize("command", ["submit - -p triage", "cache key - -p triage", "submit hi -q -"])
def test_an_input_that_is_closed_is_one_line(command: str) -> None:
    ended = laya_workers(command=(*SHELL, f"{COMMAND} {command} <&-"))
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "standard input is closed" in ended.stderr


def test_questions_that_are_nested_without_end_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    file.write_text("[" * 100_000)
    ended = laya_workers("submit", "hi", "-q", str(file))
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


def test_a_name_in_brackets_is_a_name() -> None:
    ended = laya_workers("load", "[/red]", LAYA_BROKER_URL=NOWHERE)
    assert (ended.returncode, ended.stderr.count("\n")) == (3, 1)


@pytest.mark.parametrize(
    ("variable", "command"),
    [("LAYA_BROKER_URL", "dead list"), ("LAYA_RESULT_URL", "dead list"), ("LAYA_CACHE_URL", "cache stats")],
)
@pytest.mark.parametrize("where", ["127.0.0.1:99999/0", "[::1"])
def test_a_url_that_cannot_be_read_names_its_variable_and_no_password(variable: str, command: str, where: str) -> None:
    urls = {"LAYA_BROKER_URL": NOWHERE, variable: f"redis://:hunter2@{where}"}
    ended = laya_workers(*command.split(), **urls)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert variable in ended.stderr
    assert "hunter2" not in ended.stderr


def test_a_worker_says_which_url_cannot_be_read() -> None:
    celery = (sys.executable, "-m", "celery", "-A", "worker", "worker")
    ended = laya_workers(command=celery, LAYA_BROKER_URL="redis://:hunter2@127.0.0.1:6379/first")
    assert (ended.returncode, ended.stderr.count("\n")) == (os.EX_CONFIG, 1)
    assert "LAYA_BROKER_URL" in ended.stderr
    assert "hunter2" not in ended.stderr
