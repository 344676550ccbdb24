"""The confidence gate and the sum of usage, on plain results."""

import copy
import math
from typing import Any

import pytest

from laya.confidence import aggregate_usage, apply_confidence_gate, bucket, check_min_confidence


def gated(answer: dict[str, Any], min_confidence: Any) -> dict[str, Any]:
    result = {"answers": {"q": dict(answer)}}
    apply_confidence_gate([result], min_confidence)
    return result["answers"]["q"]


NOUL = {"type": "noul", "noul": 0.7, "confidence": 0.7, "answer_confidence": 0.7}


def choice(k: int, confidence: float = 0.5) -> dict[str, Any]:
    return {"type": "choice", "probabilities": {str(i): 1 / k for i in range(k)}, "answer_confidence": confidence}


@pytest.mark.parametrize(
    ("k", "band"),
    [(1, "2"), (2, "2"), (3, "3-5"), (5, "3-5"), (6, "6-10"), (10, "6-10"), (11, "11+"), (2000, "11+")],
)
def test_a_bucket_is_the_type_and_the_band_of_the_options(k: int, band: str) -> None:
    assert bucket("score", k) == f"score:{band}"


@pytest.mark.parametrize("value", [None, 0, 1, 0.0, 0.5, {}, {"default": 1}, {"choice:11+": 0.2, "noul:2": 0}])
def test_a_number_or_a_table_of_buckets_is_a_min_confidence(value: Any) -> None:
    check_min_confidence(value)


@pytest.mark.parametrize(
    "value",
    [
        -0.1,
        1.1,
        True,
        "0.5",
        math.nan,
        math.inf,
        [0.5],
        {"choice": 0.5},
        {"choice:4": 0.5},
        {"Default": 0.5},
        {None: 0.5},
        {"default": None},
        {"default": "0.5"},
        {"default": True},
        {"noul:2": 1.5},
        {"noul:2": math.nan},
    ],
)
def test_anything_else_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match="min_confidence"):
        check_min_confidence(value)


def test_without_a_min_confidence_nothing_is_written() -> None:
    assert gated(NOUL, None) == NOUL


def test_an_answer_at_its_threshold_passes() -> None:
    assert gated(NOUL, 0.7) == {**NOUL, "abstention": "passed", "abstention_threshold": 0.7}


def test_an_answer_below_its_threshold_abstains() -> None:
    assert gated(NOUL, 0.71) == {
        **NOUL,
        "low_confidence": True,
        "abstention": "abstained",
        "abstention_threshold": 0.71,
    }


def test_a_stale_mark_is_taken_away() -> None:
    assert "low_confidence" not in gated({**NOUL, "low_confidence": True}, 0.1)


@pytest.mark.parametrize("confidence", [math.nan, math.inf, "0.9", True, None])
def test_what_is_no_finite_number_is_not_evaluated(confidence: Any) -> None:
    answer = gated({"type": "noul", "answer_confidence": confidence, "low_confidence": True}, 0.5)
    assert answer["abstention"] == "unevaluated"
    assert answer["abstention_threshold"] == 0.5
    assert "low_confidence" not in answer


def test_the_confidence_is_read_where_there_is_no_answer_confidence() -> None:
    assert gated({"type": "noul", "confidence": 0.4}, 0.5)["abstention"] == "abstained"


def test_the_answer_confidence_goes_before_the_confidence() -> None:
    assert gated({"type": "noul", "confidence": 0.9, "answer_confidence": 0.4}, 0.5)["abstention"] == "abstained"


TABLE = {"choice:3-5": 0.4, "noul:2": 0.9, "default": 0.6}


@pytest.mark.parametrize(
    ("answer", "threshold"),
    [(choice(2), 0.6), (choice(3), 0.4), (choice(5), 0.4), (choice(6), 0.6), (NOUL, 0.9), ({"type": "other"}, 0.6)],
)
def test_a_table_gives_each_answer_the_threshold_of_its_bucket(answer: dict[str, Any], threshold: float) -> None:
    assert gated(answer, TABLE)["abstention_threshold"] == threshold


def test_a_bucket_that_a_table_leaves_out_has_no_threshold() -> None:
    assert gated(choice(2, 0.0), {"noul:2": 0.9})["abstention"] == "passed"


def test_a_malformed_min_confidence_is_refused_by_the_gate_too() -> None:
    with pytest.raises(ValueError, match="min_confidence"):
        apply_confidence_gate([], 2)


@pytest.mark.parametrize("result", [None, "text", {}, {"answers": None}, {"answers": {"q": None}}])
def test_results_of_a_foreign_shape_are_left_alone(result: Any) -> None:
    given = copy.deepcopy(result)
    apply_confidence_gate([given], 0.5)
    assert given == result


def test_usage_is_summed_over_results() -> None:
    results = [
        {"usage": {"input_tokens": 3, "output_tokens": 0, "state_tokens": 9}},
        {"usage": {"input_tokens": 4}},
        {"usage": None},
        {},
        None,
    ]
    assert aggregate_usage(results) == {"input_tokens": 7, "output_tokens": 0}


def test_the_usage_of_nothing_is_zero() -> None:
    assert aggregate_usage([]) == {"input_tokens": 0, "output_tokens": 0}
