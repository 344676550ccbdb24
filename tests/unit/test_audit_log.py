"""The audit log: what a line says, what it never says, and that the system may rotate it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hooks import AuditLog
from hooks.audit import AuditSettings
from hooks.scope import Scope, asking
from laya import Router

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "checkpoints"
QUESTIONS = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "invoices", "support": None}},
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
}
STATE = "my card is 4111-1111-1111-1111"


class Log:
    def __init__(self, file: Path, **settings: Any) -> None:
        self.file = file
        self.hook = AuditLog(AuditSettings(audit_file=str(file), **settings))
        self.router = Router(
            models={"multilingual": str(GOLDEN / "multilingual")}, device="cpu", hooks=self.hook, defer_load=True
        )

    def predict(self, *args: Any, **options: Any) -> dict[str, Any]:
        return self.router.predict(*args, model="multilingual", **options)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def make_log(tmp_path: Path) -> Iterator[Callable[..., Log]]:
    made: list[Log] = []

    def make(name: str = "audit.jsonl", **settings: Any) -> Log:
        made.append(Log(tmp_path / name, **settings))
        return made[-1]

    yield make
    for log in made:
        log.hook.close()


@pytest.fixture
def log(make_log: Callable[..., Log]) -> Log:
    return make_log(audit_key="one key for all workers")


def test_a_line_says_what_was_answered_by_what_and_how_sure(log: Log) -> None:
    with asking(Scope(namespace="acme", task_id="task-1")):
        result = log.predict(STATE, QUESTIONS, min_confidence=0.9)
    (line,) = log.lines()
    assert line["task_id"] == "task-1"
    assert line["tenant"] == "acme"
    assert len(line["run_id"]) == 32
    assert line["checkpoint"] == "multilingual"
    assert line["questions"] == ["team", "urgent"]
    (answers,) = line["answers"]
    assert answers["team"]["choice"] == result["answers"]["team"]["choice"]
    assert answers["team"]["confidence"] == result["answers"]["team"]["confidence"]
    assert answers["team"]["abstention"] == result["answers"]["team"]["abstention"]
    assert line["hit"] is False
    assert line["error"] is None
    assert line["elapsed_ms"] > 0


def test_the_identity_names_the_content_that_answered(log: Log) -> None:
    log.predict(STATE, QUESTIONS)
    identity = log.router.identity("multilingual")
    assert identity is not None
    assert log.lines()[0]["identity"] == identity.digest


def test_a_state_is_a_digest_that_the_key_decides(log: Log, make_log: Callable[..., Log]) -> None:
    same = make_log("same.jsonl", audit_key="one key for all workers")
    other = make_log("other.jsonl", audit_key="another key")
    for one in (log, same, other):
        one.predict(STATE, QUESTIONS)
    digests = [one.lines()[0]["states"][0] for one in (log, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert STATE not in log.file.read_text(encoding="utf-8")


def test_without_a_key_no_two_processes_have_the_same_digests(make_log: Callable[..., Log]) -> None:
    one, other = make_log("one.jsonl"), make_log("other.jsonl")
    assert one.hook.digest(STATE) != other.hook.digest(STATE)


def test_states_stand_in_clear_only_where_they_are_asked_for(make_log: Callable[..., Log]) -> None:
    log = make_log("clear.jsonl", audit_states=True)
    log.predict(STATE, QUESTIONS)
    assert log.lines()[0]["texts"] == [STATE]


def test_a_failure_is_a_line_without_the_errors_text(log: Log) -> None:
    with pytest.raises(ValueError, match="maybe"):
        log.predict(STATE, {"urgent": {"type": "maybe"}})
    (line,) = log.lines()
    assert (line["error"], line["answers"]) == ("ValueError", [])


def test_a_hit_is_a_line_that_says_so(log: Log) -> None:
    hit = {"model": "m", "answers": {"urgent": {"type": "noul", "noul": 0.5, "confidence": 0.5}}}
    log.predict(STATE, QUESTIONS, on_predict_start=lambda ctx: ctx.skip(hit))
    (line,) = log.lines()
    assert line["hit"] is True
    assert line["answers"] == [{"urgent": {"type": "noul", "noul": 0.5, "confidence": 0.5}}]


def test_a_file_that_was_moved_away_is_opened_anew(log: Log) -> None:
    log.predict(STATE, QUESTIONS)
    rotated = log.file.rename(log.file.with_suffix(".1"))
    log.predict(STATE, QUESTIONS)
    assert len(log.lines()) == 1
    assert len(rotated.read_text(encoding="utf-8").splitlines()) == 1


def test_a_line_of_any_state_is_one_line_of_json(log: Log) -> None:
    log.predict("two\nlines \u2028 and \ud800 half a pair", QUESTIONS)
    assert len(log.lines()) == 1


def test_a_log_that_cannot_be_written_warns_and_takes_no_answer_away(log: Log) -> None:
    log.file.unlink(missing_ok=True)
    log.hook.close()
    log.file.mkdir()
    with pytest.warns(RuntimeWarning, match="AuditLog"):
        result = log.predict(STATE, QUESTIONS)
    assert set(result["answers"]) == {"team", "urgent"}


def test_the_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAYA_AUDIT_FILE", str(tmp_path / "a.jsonl"))
    monkeypatch.setenv("LAYA_AUDIT_KEY", "hidden words")
    hook = AuditLog()
    assert hook.settings.audit_file == str(tmp_path / "a.jsonl")
    assert "hidden words" not in repr(hook.settings)
    hook.close()
