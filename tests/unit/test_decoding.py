"""From logits to answers: temperatures and where they come from, probabilities and the fields of each type."""

import math
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya.decoding import Calibration, decode_answers, read_calibration, softmax, with_languages
from laya.questions import Question, parse_questions
from laya.rows import RowScores


def question(qtype: str, k: int = 3) -> Question:
    criteria: Any = {"choice": [f"c{i}" for i in range(k)], "score": [f"s{i}" for i in range(k)], "noul": None}[qtype]
    return parse_questions({"q": {"type": qtype, "instructions": "x", "criteria": criteria}})[0]


def answer(asked: Question, logits: list[float], calibration: Calibration | None = None, act: float = 0.25) -> Any:
    return decode_answers([asked], [RowScores(tuple(logits), act)], calibration or Calibration())["q"]


def log(*weights: float) -> list[float]:
    return [math.log(weight) for weight in weights]


def test_a_choice_answers_with_its_likeliest_label_and_all_probabilities() -> None:
    assert answer(question("choice"), log(1, 6, 3)) == {
        "type": "choice",
        "choice": "c1",
        "probabilities": {"c0": 0.1, "c1": 0.6, "c2": 0.3},
        "confidence": 0.1827,  # 1 - H(0.1, 0.6, 0.3) / log 3
        "answer_confidence": 0.6,
        "action": {"act_probability": 0.25},
    }


def test_a_choice_keeps_labels_that_are_no_text() -> None:
    asked = parse_questions({"q": {"type": "choice", "instructions": "x", "criteria": [7, False]}})[0]
    found = answer(asked, log(1, 3))
    assert found["choice"] is False
    assert found["probabilities"] == {7: 0.25, False: 0.75}


def test_a_score_is_the_mean_of_its_levels() -> None:
    assert answer(question("score"), log(1, 6, 3), act=1 / 3) == {
        "type": "score",
        "score": 1.2,
        "legend": {"0": "s0", "1": "s1", "2": "s2"},
        "probabilities": {"0": 0.1, "1": 0.6, "2": 0.3},
        "confidence": 0.1827,
        "answer_confidence": 0.6,
        "action": {"act_probability": 0.3333},
    }


@pytest.mark.parametrize(("false", "true", "confidence"), [(1, 3, 0.75), (3, 1, 0.75), (1, 1, 0.5)])
def test_a_noul_is_the_probability_of_true(false: float, true: float, confidence: float) -> None:
    assert answer(question("noul"), log(false, true)) == {
        "type": "noul",
        "noul": true / (false + true),
        "confidence": confidence,
        "answer_confidence": confidence,
        "action": {"act_probability": 0.25},
    }


@pytest.mark.parametrize("qtype", ["choice", "score"])
def test_a_single_option_is_certain(qtype: str) -> None:
    found = answer(question(qtype, 1), [-3.0])
    assert found["confidence"] == 1.0
    assert found["answer_confidence"] == 1.0


def test_logits_that_are_not_numbers_never_look_confident() -> None:
    found = answer(question("choice"), [math.nan, 1.0, 2.0])
    assert math.isnan(found["confidence"])
    assert math.isnan(found["answer_confidence"])


@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=40))
def test_confidence_and_probabilities_stay_within_bounds(logits: list[float]) -> None:
    found = answer(question("choice", len(logits)), logits)
    assert 0.0 <= found["confidence"] <= 1.0
    assert sum(found["probabilities"].values()) == pytest.approx(1.0, abs=1e-4 * len(logits))
    assert found["probabilities"][found["choice"]] == max(found["probabilities"].values())


def test_softmax_survives_large_logits() -> None:
    assert softmax([1e4, -1e4]) == [1.0, 0.0]


def temperature_of(calibration: Calibration, qtype: str, k: int, lang: str | None = None) -> float:
    return calibration.temperature(question(qtype, k), lang)


CONFIG = {"temperature": [1.1, 1.3, 0.9], "temperature_by_options": {"choice:3-5": 1.4, "noul:2": 1.2}}


@pytest.mark.parametrize(
    ("qtype", "k", "temperature"),
    [
        ("choice", 2, 1.1),
        ("choice", 3, 1.4),
        ("choice", 5, 1.4),
        ("choice", 6, 1.1),
        ("score", 3, 1.3),
        ("noul", 2, 1.2),
    ],
)
def test_a_bucket_has_its_own_temperature_and_else_the_types(qtype: str, k: int, temperature: float) -> None:
    assert temperature_of(read_calibration(CONFIG, "c"), qtype, k) == temperature


def test_a_temperature_divides_the_logits() -> None:
    calibration = read_calibration({"temperature": [2.0, 1.0, 1.0]}, "c")
    assert answer(question("choice", 2), [0.0, 2 * math.log(3)], calibration)["probabilities"] == {
        "c0": 0.25,
        "c1": 0.75,
    }


def test_without_temperatures_every_one_is_one() -> None:
    assert read_calibration({}, "c") == Calibration()
    assert read_calibration({"temperature_by_options": None}, "c") == Calibration()


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (0.1, 0.5),
        (0, 0.5),
        (-3, 0.5),
        (7.0, 5.0),
        (10**400, 5.0),
        ("1.2", 1.0),
        (None, 1.0),
        (True, 1.0),
        (math.nan, 1.0),
        (math.inf, 1.0),
        (-math.inf, 1.0),
    ],
)
def test_an_unusable_temperature_is_changed_with_a_warning_that_names_it(given: Any, used: float) -> None:
    config = {"temperature": [1.0, given, 1.0], "temperature_by_options": {"choice:11+": given, "noul:2": 2}}
    with pytest.warns(RuntimeWarning) as caught:
        calibration = read_calibration(config, "mine")
    assert calibration.by_type == (1.0, used, 1.0)
    assert calibration.by_bucket == {"choice:11+": used, "noul:2": 2.0}
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "mine" in message
    assert "temperature[score]" in message
    assert "choice:11+" in message
    assert "noul:2" not in message


@pytest.mark.parametrize("given", [0.5, 5, 5.0, 1])
def test_a_temperature_within_the_limits_is_used_without_a_word(given: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_calibration({"temperature": [given] * 3}, "c").by_type == (given,) * 3


@pytest.mark.parametrize("temperature", [None, 1.0, [], [1.0, 1.0], [1.0] * 4, "123", {"choice": 1.0}])
def test_temperatures_that_are_no_list_of_three_are_refused(temperature: Any) -> None:
    with pytest.raises(ValueError, match="checkpoint mine: temperature must be a list of three"):
        read_calibration({"temperature": temperature}, "mine")


def test_a_table_of_buckets_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="checkpoint mine: temperature_by_options must be a mapping"):
        read_calibration({"temperature_by_options": [1.0]}, "mine")


GERMAN = {"de": {"temperature": [2.0, 2.0, 2.0], "temperature_by_options": {"choice:6-10": 3.0}}}


@pytest.mark.parametrize("lang", ["de", "DE", "de-AT", "de_AT.UTF-8", " de "])
def test_a_language_brings_both_tables_of_its_own(lang: str) -> None:
    calibration = with_languages(read_calibration(CONFIG, "c"), GERMAN)
    assert temperature_of(calibration, "choice", 3, lang) == 2.0
    assert temperature_of(calibration, "choice", 6, lang) == 3.0


@pytest.mark.parametrize("lang", [None, "", "fr", "den"])
def test_another_language_keeps_the_checkpoints_temperatures(lang: str | None) -> None:
    calibration = with_languages(read_calibration(CONFIG, "c"), GERMAN)
    assert temperature_of(calibration, "choice", 3, lang) == 1.4


def test_a_language_without_buckets_uses_none_of_the_checkpoints() -> None:
    calibration = with_languages(read_calibration(CONFIG, "c"), {"de": {"temperature": [2.0, 2.0, 2.0]}})
    assert temperature_of(calibration, "choice", 3, "de") == 2.0


def test_the_temperatures_of_a_language_are_clamped_too() -> None:
    with pytest.warns(RuntimeWarning, match="de: temperature\\[noul\\]"):
        calibration = with_languages(Calibration(), {"de": {"temperature": [1.0, 1.0, 9.0]}})
    assert temperature_of(calibration, "noul", 2, "de") == 5.0


@pytest.mark.parametrize("table", [[], "de", {"de": None}, {"": {}}, {3: {}}, {"de": {"temperature": [1.0]}}])
def test_a_malformed_table_of_languages_is_refused(table: Any) -> None:
    with pytest.raises(ValueError, match="lang_temperatures"):
        with_languages(Calibration(), table)
