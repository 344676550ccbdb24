"""Judging finished answers: the confidence gate, and the sum of what a call used.

Works on plain results, whether computed or taken from a cache, and knows nothing of how they came about.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from laya.questions import QTYPES, shown

BANDS = ("2", "3-5", "6-10", "11+")
"""Bands of the number of options."""

BUCKETS = frozenset(f"{qtype}:{band}" for qtype in QTYPES for band in BANDS)
"""The twelve buckets that thresholds and temperatures can be set for."""

PASSED, ABSTAINED, UNEVALUATED = "passed", "abstained", "unevaluated"


def bucket(qtype: str, k: int) -> str:
    """The bucket of a question of this type with ``k`` options, such as ``choice:3-5``."""
    if k <= 2:
        band = "2"
    elif k <= 5:
        band = "3-5"
    elif k <= 10:
        band = "6-10"
    else:
        band = "11+"
    return f"{qtype}:{band}"


def check_min_confidence(value: object) -> None:
    """Refuse what cannot be a ``min_confidence``. None means no gate.

    Raises:
        ValueError: neither a number in [0, 1] nor a mapping of buckets and ``"default"`` to such numbers.
    """
    if value is None or _is_threshold(value):
        return
    if not isinstance(value, Mapping):
        raise ValueError(
            f"min_confidence must be a number in [0, 1] or a mapping of buckets to such numbers, not {shown(value)}"
        )
    for name, threshold in value.items():
        if name != "default" and name not in BUCKETS:
            raise ValueError(
                f"min_confidence: unknown bucket {shown(name)}; the buckets are {', '.join(sorted(BUCKETS))} "
                "and default"
            )
        if not _is_threshold(threshold):
            raise ValueError(f"min_confidence[{name!r}] must be a number in [0, 1], not {shown(threshold)}")


def apply_confidence_gate(results: Iterable[Any], min_confidence: Any) -> None:
    """Mark in place every answer of these results as passed, abstained or unevaluated.

    Writes ``abstention`` and ``abstention_threshold``, and ``low_confidence: true`` only where an answer's
    confidence is below its threshold. None writes nothing.

    Raises:
        ValueError: ``min_confidence`` cannot be one (see :func:`check_min_confidence`).
    """
    if min_confidence is None:
        return
    check_min_confidence(min_confidence)
    for result in results:
        answers = result.get("answers") if isinstance(result, Mapping) else None
        if not isinstance(answers, Mapping):
            continue
        for answer in answers.values():
            if isinstance(answer, dict):
                _gate(answer, min_confidence)


def aggregate_usage(results: Iterable[Any]) -> dict[str, int]:
    """The ``input_tokens`` and ``output_tokens`` of these results, summed; one without them counts zero."""
    total = {"input_tokens": 0, "output_tokens": 0}
    for result in results:
        usage = result.get("usage") if isinstance(result, Mapping) else None
        if not isinstance(usage, Mapping):
            continue
        for name in total:
            count = usage.get(name)
            if isinstance(count, int):
                total[name] += count
    return total


def _gate(answer: dict[str, Any], min_confidence: Any) -> None:
    threshold = _threshold(answer, min_confidence)
    confidence = answer.get("answer_confidence")
    if confidence is None:
        confidence = answer.get("confidence")
    answer.pop("low_confidence", None)
    if not _is_finite(confidence):
        answer["abstention"] = UNEVALUATED
    elif confidence < threshold:
        answer["low_confidence"] = True
        answer["abstention"] = ABSTAINED
    else:
        answer["abstention"] = PASSED
    answer["abstention_threshold"] = threshold


def _threshold(answer: Mapping[str, Any], min_confidence: Any) -> Any:
    if not isinstance(min_confidence, Mapping):
        return min_confidence
    own = min_confidence.get(_bucket_of(answer))
    return own if own is not None else min_confidence.get("default", 0.0)


def _bucket_of(answer: Mapping[str, Any]) -> str:
    qtype = answer.get("type")
    if qtype == "noul":
        return bucket("noul", 2)
    probabilities = answer.get("probabilities")
    return bucket(str(qtype), len(probabilities) if isinstance(probabilities, Mapping) else 0)


def _is_threshold(value: object) -> bool:
    return _is_finite(value) and 0 <= value <= 1  # type: ignore[operator]  # a number, as was just seen


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, int) or math.isfinite(value)
