"""The recorded answers of the published checkpoints, as a caller over JSON sees them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import laya

GOLDEN = Path(__file__).parents[1] / "data/golden"
CASES = [json.loads(line) for line in (GOLDEN / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
TOLERANCE = 1e-3  # another batch shape, another kernel


@pytest.fixture(scope="module")
def agents() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*temperatures outside", category=RuntimeWarning)
        return {
            directory.name: laya.load(str(directory), device="cpu") for directory in (GOLDEN / "checkpoints").iterdir()
        }


def test_all_three_checkpoints_have_cases() -> None:
    assert len(CASES) == 150
    assert {case["checkpoint"] for case in CASES} == {"english", "multilingual", "typed-decisions"}


@pytest.mark.parametrize("case", [case for case in CASES if "results" in case], ids=lambda case: case["id"])
def test_an_answer_is_the_recorded_one(agents: dict[str, Any], case: dict[str, Any]) -> None:
    found = agents[case["checkpoint"]].predict_batch(case["states"], case["questions"], **case["kwargs"])
    assert differences(case["results"], json.loads(json.dumps(found))) == []


@pytest.mark.parametrize("case", [case for case in CASES if "error" in case], ids=lambda case: case["id"])
def test_a_refusal_is_the_recorded_one(agents: dict[str, Any], case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="option markers fit") as refusal:
        agents[case["checkpoint"]].predict_batch(case["states"], case["questions"], **case["kwargs"])
    assert type(refusal.value).__name__ == case["error"]


def differences(want: Any, got: Any, at: str = "result") -> list[str]:
    """Where two values differ: floats by more than the tolerance, anything else at all."""
    if isinstance(want, float) and isinstance(got, int | float) and not isinstance(got, bool):
        return [] if abs(want - got) <= TOLERANCE else [f"{at}: want {want}, got {got}"]
    if isinstance(want, dict) and isinstance(got, dict) and want.keys() == got.keys():
        return [found for key in want for found in differences(want[key], got[key], f"{at}.{key}")]
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        pairs = enumerate(zip(want, got, strict=True))
        return [found for index, pair in pairs for found in differences(*pair, f"{at}[{index}]")]
    same = type(want) is type(got) and want == got
    return [] if same else [f"{at}: want {want!r}, got {got!r}"]
