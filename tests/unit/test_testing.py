"""Answers in the same process, for the tests of a backend."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from producer import (
    InvalidRequest,
    LayaError,
    PayloadTooLarge,
    PredictionFailed,
    QueueFull,
    apredict,
    predict,
    predict_many,
    submit_prediction,
    submit_predictions,
)
from producer.testing import answering

QUESTIONS: dict[str, Any] = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "support"]},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "mid", "high"]},
    "angry": {"type": "noul", "instructions": "The customer is angry."},
}


def test_given_values_become_answers_of_every_type() -> None:
    with answering({"team": "support", "urgency": 2, "angry": 0.25}):
        answers = predict("hello", QUESTIONS)["answers"]
    assert (answers["team"]["choice"], answers["urgency"]["score"], answers["angry"]["noul"]) == ("support", 2, 0.25)
    assert answers["urgency"]["legend"] == {"0": "low", "1": "mid", "2": "high"}


def test_a_question_without_a_given_value_gets_an_undecided_answer() -> None:
    with answering():
        answer = predict("hello", QUESTIONS)["answers"]["team"]
    assert answer["probabilities"] == {"billing": 0.5, "support": 0.5}


def test_what_was_submitted_is_remembered_in_order() -> None:
    with answering() as sent:
        submit_prediction.delay("hello", QUESTIONS, model="en", min_confidence=0.5)
        asyncio.run(apredict("Guten Tag, wo bleibt meine Bestellung?", QUESTIONS))
    assert [(one.state[:5], one.checkpoint) for one in sent.submissions] == [
        ("hello", "english"),
        ("Guten", "multilingual"),
    ]
    assert sent.submissions[0].options == {"model": "en", "min_confidence": 0.5}
    assert sent.last is sent.submissions[1]


def test_nothing_submitted_is_a_failed_assertion() -> None:
    with answering() as sent, pytest.raises(AssertionError, match="no prediction"):
        _ = sent.last


def test_a_function_sees_the_request_and_answers_it() -> None:
    def answers(state: Any, questions: Any, **options: Any) -> dict[str, Any]:
        return {"team": "billing" if "money" in state else "support"}

    with answering(answers):
        assert predict("my money", QUESTIONS)["answers"]["team"]["choice"] == "billing"
        assert predict("my screen", QUESTIONS)["answers"]["team"]["choice"] == "support"


def test_a_whole_result_is_taken_as_it_is() -> None:
    with answering(lambda *_, **__: {"answers": {"team": {"type": "choice", "choice": "x"}}}):
        assert predict("hello", QUESTIONS) == {"answers": {"team": {"type": "choice", "choice": "x"}}}


def test_an_error_of_the_tree_comes_as_it_is_and_another_as_a_failed_prediction() -> None:
    def full(*_: Any, **__: Any) -> dict[str, Any]:
        raise QueueFull

    def broken(*_: Any, **__: Any) -> dict[str, Any]:
        raise KeyError("x")

    with answering(full), pytest.raises(QueueFull):
        predict("hello", QUESTIONS)
    with answering(broken), pytest.raises(PredictionFailed, match="KeyError"):
        predict("hello", QUESTIONS)


def test_a_bad_request_is_refused_at_submission_and_not_remembered() -> None:
    with answering() as sent:
        with pytest.raises(InvalidRequest):
            submit_prediction.delay(None, QUESTIONS)
        assert sent.submissions == []


def test_a_batch_is_answered_with_its_errors_in_place() -> None:
    with answering() as sent:
        results = submit_predictions.delay(
            [{"state": "a", "questions": QUESTIONS}, {"state": None, "questions": QUESTIONS}]
        ).get()
    assert "answers" in results[0]
    assert isinstance(LayaError.from_entry(results[1]), InvalidRequest)
    assert len(sent.submissions) == 1


def test_a_long_list_is_answered_and_a_request_too_large_for_any_message_is_its_own_error() -> None:
    requests = [{"state": state, "questions": QUESTIONS} for state in ("a", "x" * 2**21, "b")]
    with answering() as sent:
        results = dict(predict_many(requests))
    assert isinstance(LayaError.from_entry(results[1]), PayloadTooLarge)
    assert [one.state for one in sent.submissions] == ["a", "b"]


def test_the_confidence_gate_judges_made_up_answers_too() -> None:
    with answering({"team": "billing"}):
        answers = predict("hello", QUESTIONS, min_confidence=0.9)["answers"]
    assert (answers["team"]["abstention"], answers["angry"]["abstention"]) == ("passed", "abstained")


def test_a_label_that_is_no_text_comes_back_as_from_the_queue() -> None:
    question = {"n": {"type": "choice", "instructions": "How many?", "criteria": [1, 2]}}
    with answering({"n": 2}):
        answer = predict("hello", question)["answers"]["n"]
    assert (answer["choice"], answer["probabilities"]) == (2, {"1": 0.0, "2": 1.0})


def test_links_and_canvas_run_in_process() -> None:
    with answering() as sent:
        (submit_prediction.s("hello", QUESTIONS) | submit_prediction.s(QUESTIONS)).delay().get()
    assert len(sent.submissions) == 2
    assert sent.last.state["answers"]["team"]["choice"] == "billing"


def test_after_the_block_the_app_is_as_before() -> None:
    app = submit_prediction.app
    with answering():
        assert app.conf.task_always_eager
    assert not app.conf.task_always_eager
    assert app.service is None


def test_django_s_eager_setting_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SimpleNamespace(configured=True, CELERY_TASK_ALWAYS_EAGER=True)
    monkeypatch.setitem(sys.modules, "django.conf", SimpleNamespace(settings=settings))  # type: ignore[arg-type]
    with pytest.raises(PredictionFailed, match=r"producer\.testing\.answering"):
        predict("hello", QUESTIONS)


def test_a_process_without_answers_says_what_to_do() -> None:
    with pytest.raises(PredictionFailed, match="start a worker"):
        submit_prediction.apply(("hello", QUESTIONS)).get()
