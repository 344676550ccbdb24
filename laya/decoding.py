"""From a row's logits to its answer: temperatures, probabilities, and the fields of each question type.

The same for every kind of checkpoint, in plain Python: a row has few options. The confidence gate comes later
(:mod:`laya.confidence`).
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from laya.confidence import bucket
from laya.questions import QTYPES, Question, shown
from laya.rows import RowScores

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.5, 5.0

_LANGUAGES = "lang_temperatures"

_PLACES = 4  # decimal places of every number in an answer


@dataclass(frozen=True, slots=True)
class Calibration:
    """The temperatures of a checkpoint, each within [0.5, 5.0].

    ``by_type`` follows the order of the question types, ``by_bucket`` goes before it, and ``languages`` (primary
    subtag to calibration) before both.
    """

    by_type: tuple[float, float, float] = (1.0, 1.0, 1.0)
    by_bucket: Mapping[str, float] = field(default_factory=dict)
    languages: Mapping[str, "Calibration"] = field(default_factory=dict)

    def temperature(self, question: Question, lang: str | None = None) -> float:
        """The temperature that divides this question's logits in a call with this ``lang``."""
        chosen = self.languages.get(primary_subtag(lang), self) if lang and self.languages else self
        own = chosen.by_bucket.get(bucket(question.qtype, question.k)) if chosen.by_bucket else None
        return chosen.by_type[question.type_index] if own is None else own


def read_calibration(config: Mapping[str, Any], name: str) -> Calibration:
    """The calibration of the checkpoint called ``name``, from its config.

    Warns once, naming the entries, when a temperature had to be clamped or replaced.

    Raises:
        ValueError: ``temperature`` is not a list of three, or ``temperature_by_options`` not a mapping.
    """
    clamped: list[str] = []
    calibration = _read(config, f"checkpoint {name}", "", clamped)
    _warn_of(clamped, f"checkpoint {name}")
    return calibration


def with_languages(calibration: Calibration, lang_temperatures: Mapping[str, Any] | None) -> Calibration:
    """A calibration with temperatures of its own for calls in some languages.

    Each entry replaces both the temperatures by type and those by bucket; what an entry leaves out is 1.0. Warns
    once, naming the entries, when a temperature had to be clamped or replaced.

    Raises:
        ValueError: the table or an entry has the wrong shape.
    """
    if lang_temperatures is None:
        return calibration
    clamped: list[str] = []
    languages = _read_languages(lang_temperatures, clamped)
    _warn_of(clamped, _LANGUAGES)
    return replace(calibration, languages=languages)


def calibration_of(config: Mapping[str, Any], lang_temperatures: Mapping[str, Any] | None, name: str) -> Calibration:
    """What `read_calibration` and `with_languages` make of a checkpoint, for someone who does not load it.

    Warns of nothing: whoever loads it is told.

    Raises:
        ValueError: as those two.
    """
    calibration = _read(config, f"checkpoint {name}", "", [])
    if lang_temperatures is None:
        return calibration
    return replace(calibration, languages=_read_languages(lang_temperatures, []))


def _read_languages(lang_temperatures: Mapping[str, Any], clamped: list[str]) -> dict[str, Calibration]:
    where = _LANGUAGES
    if not isinstance(lang_temperatures, Mapping):
        raise ValueError(f"{where} must be a mapping of language to temperatures, not {shown(lang_temperatures)}")
    languages: dict[str, Calibration] = {}
    for lang, entry in lang_temperatures.items():
        if not isinstance(lang, str) or not lang.strip():
            raise ValueError(f"{where}: a language must be a code such as 'de', not {shown(lang)}")
        if not isinstance(entry, Mapping):
            raise ValueError(f"{where}[{lang!r}] must be a mapping, not {shown(entry)}")
        languages[primary_subtag(lang)] = _read(entry, f"{where}[{lang!r}]", f"{lang}: ", clamped)
    return languages


def primary_subtag(lang: str) -> str:
    """The language of a language code or locale: ``de`` of ``de-AT`` and of ``de_AT.UTF-8``."""
    return lang.strip().lower().replace("_", "-").replace(".", "-").partition("-")[0]


def decode_answers(
    questions: Sequence[Question],
    scores: Sequence[RowScores],
    calibration: Calibration,
    lang: str | None = None,
) -> dict[str | int, dict[str, Any]]:
    """The answers of one state by question id; ``scores`` holds one row for each question, in order."""
    return {
        question.id: _answer(question, row, calibration.temperature(question, lang))
        for question, row in zip(questions, scores, strict=True)
    }


def softmax(logits: Sequence[float]) -> list[float]:
    """Probabilities of these logits."""
    highest = max(logits)
    weights = [math.exp(logit - highest) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _answer(question: Question, row: RowScores, temperature: float) -> dict[str, Any]:
    logits = row.logits if temperature == 1.0 else [logit / temperature for logit in row.logits]
    probabilities = softmax(logits)
    answer = _FIELDS_OF[question.qtype](question, probabilities)
    answer["answer_confidence"] = _rounded(max(probabilities))
    answer["action"] = {"act_probability": _rounded(row.act_probability)}
    return answer


def _choice(question: Question, probabilities: list[float]) -> dict[str, Any]:
    likeliest = probabilities.index(max(probabilities))
    rounded = [round(p, _PLACES) for p in probabilities]
    return {
        "type": "choice",
        "choice": question.labels[likeliest],
        "probabilities": dict(zip(question.labels, rounded, strict=True)),
        "confidence": _rounded(_certainty(probabilities)),
    }


def _score(question: Question, probabilities: list[float]) -> dict[str, Any]:
    return {
        "type": "score",
        "score": _rounded(math.fsum(level * p for level, p in enumerate(probabilities))),
        "legend": {str(level): text for level, text in enumerate(question.legend)},
        "probabilities": {str(level): _rounded(p) for level, p in enumerate(probabilities)},
        "confidence": _rounded(_certainty(probabilities)),
    }


def _noul(_question: Question, probabilities: list[float]) -> dict[str, Any]:
    true = probabilities[1]
    return {"type": "noul", "noul": _rounded(true), "confidence": _rounded(max(true, 1.0 - true))}


_FIELDS_OF = {"choice": _choice, "score": _score, "noul": _noul}


def _certainty(probabilities: list[float]) -> float:
    """1 - H(p) / log k, within [0, 1]: 1 where all the weight is on one option, 0 where it is spread evenly."""
    if len(probabilities) < 2:
        return 1.0
    entropy = -math.fsum([p * math.log(p) for p in probabilities if p != 0.0])
    certainty = 1.0 - entropy / math.log(len(probabilities))
    # Not a number stays so: clamping it would claim a confidence that nobody has.
    return certainty if math.isnan(certainty) else min(1.0, max(0.0, certainty))


def _rounded(value: float) -> float:
    return round(value, _PLACES)


def _read(entry: Mapping[str, Any], where: str, prefix: str, clamped: list[str]) -> Calibration:
    temperature = entry.get("temperature", [1.0] * len(QTYPES))
    if not isinstance(temperature, (list, tuple)) or len(temperature) != len(QTYPES):
        raise ValueError(
            f"{where}: temperature must be a list of three ({', '.join(QTYPES)}), not {shown(temperature)}"
        )
    by_options = entry.get("temperature_by_options")
    if by_options is None:
        by_options = {}
    if not isinstance(by_options, Mapping):
        raise ValueError(
            f"{where}: temperature_by_options must be a mapping of bucket to temperature, not {shown(by_options)}"
        )
    choice, score, noul = (
        _clamped(value, f"{prefix}temperature[{qtype}]", clamped)
        for qtype, value in zip(QTYPES, temperature, strict=True)
    )
    by_bucket = {str(key): _clamped(value, f"{prefix}{key}", clamped) for key, value in by_options.items()}
    return Calibration((choice, score, noul), by_bucket)


def _clamped(value: object, name: str, clamped: list[str]) -> float:
    """A temperature within the limits; one that had to change is noted in ``clamped``."""
    usable = 1.0
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf:
        usable = float(min(MAX_TEMPERATURE, max(MIN_TEMPERATURE, value)))
    # A value that is not a number differs from 1.0 by its type where not by its worth (True == 1.0).
    if usable != value or isinstance(value, bool):
        clamped.append(f"{name} {shown(value)} -> {usable}")
    return usable


def _warn_of(clamped: list[str], where: str) -> None:
    if clamped:
        warnings.warn(
            f"{where}: temperatures outside [{MIN_TEMPERATURE}, {MAX_TEMPERATURE}] were changed: {'; '.join(clamped)}",
            RuntimeWarning,
            stacklevel=3,
        )
