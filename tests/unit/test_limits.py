"""How large a request may be: each limit is a setting; the error names it, the thing and both numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from producer.app import PredictionApp
from producer.errors import InvalidRequest, LayaError, PayloadTooLarge
from producer.jsonform import JsonForm
from producer.limits import DEEPEST, DEFAULT, Limits
from producer.request import PredictionRequest
from producer.request_checks import check, check_batch
from producer.settings import ProducerSettings
from producer.tasks import register

NOUL = {"type": "noul", "instructions": "It is urgent."}
CASES = Path(__file__).resolve().parents[1] / "data" / "golden" / "cases.jsonl"
FEW = Limits(payload=5000, questions=3, options=4, depth=5, text=100, batch=2)


def choice(count: int) -> dict[str, Any]:
    return {"type": "choice", "instructions": "Which?", "criteria": [f"option {number}" for number in range(count)]}


def nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


def ask(state: Any, questions: Any, limits: Limits = FEW) -> PredictionRequest:
    return check(PredictionRequest(state, questions), JsonForm(limits))


Refused = tuple[str, Callable[[], Any], type[LayaError], tuple[str, ...]]
REFUSED: list[Refused] = [
    (
        "LAYA_MAX_QUESTIONS",
        lambda: ask("a", {str(number): NOUL for number in range(4)}),
        InvalidRequest,
        ("4 questions", "allows 3"),
    ),
    ("LAYA_MAX_OPTIONS", lambda: ask("a", {"big": choice(5)}), InvalidRequest, ("'big'", "5 options", "allows 4")),
    ("LAYA_MAX_DEPTH", lambda: ask(nested(6), {"q": NOUL}), InvalidRequest, ("the state", "5 levels")),
    (
        "LAYA_MAX_DEPTH",
        lambda: ask("a", {"q": {**NOUL, "instructions": nested(6)}}),
        InvalidRequest,
        ("questions", "5 levels"),
    ),
    (
        "LAYA_MAX_TEXT",
        lambda: ask({"a": "x" * 101}, {"q": NOUL}),
        PayloadTooLarge,
        ("the state.'a'", "101", "100"),
    ),
    (
        "LAYA_MAX_TEXT",
        lambda: ask("a", {"q": {**NOUL, "instructions": "x" * 101}}),
        PayloadTooLarge,
        ("'instructions'", "101", "100"),
    ),
    ("LAYA_MAX_TEXT", lambda: ask({"x" * 101: 1}, {"q": NOUL}), PayloadTooLarge, ("a key of the state", "101")),
    ("LAYA_MAX_PAYLOAD", lambda: ask(["x" * 90] * 100, {"q": NOUL}), PayloadTooLarge, ("allows 5000",)),
    (
        "LAYA_MAX_BATCH",
        lambda: check_batch([{"state": "a", "questions": {"q": NOUL}}] * 3, FEW),
        PayloadTooLarge,
        ("3 requests", "allows 2"),
    ),
]


@pytest.mark.parametrize(("setting", "call", "kind", "said"), REFUSED, ids=[f"{r[0]}-{r[3][0]}" for r in REFUSED])
def test_a_refusal_names_the_setting_the_thing_and_both_numbers(
    setting: str, call: Callable[[], Any], kind: type[LayaError], said: tuple[str, ...]
) -> None:
    with pytest.raises(kind) as refusal:
        call()
    assert type(refusal.value) is kind
    assert all(part in str(refusal.value) for part in (setting, *said)), str(refusal.value)
    assert refusal.value.fields["setting"] == setting


def test_what_is_just_within_every_limit_passes() -> None:
    assert ask({"a": "x" * 100, "b": nested(4)}, {"q": choice(4), "r": NOUL, "s": NOUL})
    assert len(check_batch([{"state": "a", "questions": {"q": NOUL}}] * 2, FEW)) == 2


def test_a_text_that_is_too_long_fails_its_own_request_of_a_batch_and_no_other() -> None:
    items = check_batch([{"state": text, "questions": {"q": NOUL}} for text in ("a", "x" * 101)], FEW)
    assert isinstance(items[0], PredictionRequest)
    assert type(LayaError.from_entry(items[1])) is PayloadTooLarge  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["questions", "options", "depth", "text", "batch", "payload"])
def test_each_limit_is_read_from_its_setting(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"LAYA_MAX_{setting.upper()}", "7")
    assert getattr(ProducerSettings().limits, setting) == 7


def test_the_settings_defaults_are_the_limits() -> None:
    assert ProducerSettings().limits == DEFAULT


def test_a_depth_that_python_s_reader_could_not_read_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYA_MAX_DEPTH", str(DEEPEST + 1))
    with pytest.raises(ValueError, match="less than or equal to 256"):
        ProducerSettings()
    assert sys.getrecursionlimit() > DEEPEST * 3


@pytest.mark.parametrize("where", ["state", "instructions", "description", "level", "option", "definition", "id"])
def test_100_000_levels_are_refused_wherever_they_stand(where: str) -> None:
    deep = nested(100_000)
    requests: dict[str, tuple[Any, Any]] = {
        "state": (deep, {"q": NOUL}),
        "instructions": ("a", {"q": {**NOUL, "instructions": deep}}),
        "description": ("a", {"q": {**choice(1), "criteria": {"a": deep}}}),
        "level": ("a", {"q": {"type": "score", "instructions": "?", "criteria": [deep, "b"]}}),
        "option": ("a", {"q": {**choice(1), "criteria": [deep]}}),
        "definition": ("a", {"q": deep}),
        "id": ("a", {("x",) * 3: NOUL, "q": {**NOUL, "criteria": deep}}),
    }
    with pytest.raises(InvalidRequest):
        ask(*requests[where], DEFAULT)


class Endless(list[int]):
    """A list that says wrongly how long it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(int, 1)


def doubled(times: int) -> Any:
    """A small list, as an alias of YAML makes it, that is 10 ** times long when it is written down."""
    value: Any = "end"
    for _ in range(times):
        value = [value] * 10
    return value


@pytest.mark.parametrize("where", ["state", "definition", "type", "instructions", "description", "option", "gate"])
@pytest.mark.parametrize("value", [doubled(15), Endless([1])], ids=["a list many times in lists", "a list without end"])
def test_what_is_small_and_without_end_once_written_is_refused(where: str, value: Any) -> None:
    requests: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "state": (value, {"q": NOUL}, {}),
        "definition": ("a", {"q": value}, {}),
        "type": ("a", {"q": {**NOUL, "type": value}}, {}),
        "instructions": ("a", {"q": {**NOUL, "instructions": value}}, {}),
        "description": ("a", {"q": {**choice(1), "criteria": {"a": value}}}, {}),
        "option": ("a", {"q": {**choice(1), "criteria": value}}, {}),
        "gate": ("a", {"q": NOUL}, {"min_confidence": {"q": value}}),
    }
    if where == "state" and isinstance(value, Endless):
        assert check(PredictionRequest(*requests[where]), JsonForm(DEFAULT)).state == [0]
        return
    with pytest.raises(PayloadTooLarge):
        check(PredictionRequest(*requests[where]), JsonForm(DEFAULT))


def test_100_000_levels_are_refused_at_submission_too() -> None:
    app = PredictionApp(ProducerSettings(broker_url="redis://127.0.0.1:1/0"))
    submit_prediction, _ = register(app)
    with pytest.raises(InvalidRequest, match="LAYA_MAX_DEPTH"):
        submit_prediction.delay(nested(100_000), {"q": NOUL})
    items = check_batch([{"state": nested(100_000), "questions": {"q": NOUL}}], DEFAULT)
    assert LayaError.from_entry(items[0]).fields["setting"] == "LAYA_MAX_DEPTH"  # type: ignore[arg-type]


def test_the_defaults_refuse_nothing_that_is_recorded() -> None:
    recorded = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    answered = [case for case in recorded if "results" in case]
    for case in answered:
        for state in case["states"]:
            check(PredictionRequest(state, case["questions"]), JsonForm(DEFAULT))
    assert len(answered) > 100
