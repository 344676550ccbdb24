"""Tests of a backend without server and worker: tasks are answered in the same process, and remembered.

::

    with answering({"team": "billing"}) as sent:
        view(request)
    assert sent.last.state == "Where is my money?"

Requests are checked and routed as ever, so a test sees the errors that production would.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from laya.confidence import apply_confidence_gate
from laya.questions import Question, parse_questions
from laya.routing import RouteDecision
from producer.app import PredictionApp
from producer.app import app as default_app
from producer.errors import LayaError, PredictionFailed
from producer.jsonform import JsonForm
from producer.request import BatchItem, PredictionRequest, route
from producer.request_checks import check

Answers = Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as it was submitted, the checkpoint that it was routed to, and whose it is if it names a tenant."""

    state: Any
    questions: Mapping[str, Any]
    options: Mapping[str, Any]
    checkpoint: str
    tenant: str | None = None


class AnsweringService:
    """Answers every request with given or made-up answers, and remembers it."""

    def __init__(self, answers: Answers, app: PredictionApp) -> None:
        """Answer for `app`; :func:`answering` says what `answers` may be."""
        self._answers = answers
        self._app = app
        self.submissions: list[Sent] = []

    @property
    def last(self) -> Sent:
        """The request that was submitted last.

        Raises:
            AssertionError: none was.
        """
        if not self.submissions:
            raise AssertionError("no prediction was submitted")
        return self.submissions[-1]

    def predict(
        self,
        request: PredictionRequest,
        deadline: float | None,  # noqa: ARG002 - a service gets one
        tenant: str | None = None,
    ) -> dict[str, Any]:
        """Answer one request as a worker would, whatever its deadline."""
        settings = self._app.settings
        checked = check(request, JsonForm(settings.limits))
        decision = route(checked, settings.names, settings.default_checkpoint)
        self.submissions.append(Sent(checked.state, checked.questions, checked.options, decision["model"], tenant))
        try:
            made = self._result(checked, decision)
        except LayaError:
            raise
        except Exception as error:
            raise PredictionFailed(f"{type(error).__name__}: {error}", {"cause": type(error).__name__}) from error
        # As a backend reads it: what was a number among the keys is a text.
        result: dict[str, Any] = json.loads(json.dumps(made))
        apply_confidence_gate([result], checked.options.get("min_confidence"))
        return result

    def predict_many(
        self, items: Sequence[BatchItem], deadline: float | None, tenant: str | None = None
    ) -> list[dict[str, Any]]:
        """Answer checked requests in order; one that fails is an error entry at its place."""
        return [self._entry(item, deadline, tenant) if isinstance(item, PredictionRequest) else item for item in items]

    def _entry(self, request: PredictionRequest, deadline: float | None, tenant: str | None) -> dict[str, Any]:
        try:
            return self.predict(request, deadline, tenant)
        except LayaError as error:
            return error.as_entry()

    def _result(self, request: PredictionRequest, decision: RouteDecision) -> dict[str, Any]:
        given = self._answers or {}
        if callable(given):
            given = given(request.state, request.questions, **request.options)
            if "answers" in given:
                return {**given}
        questions = parse_questions(request.questions)
        return {
            "model": "laya-rl-agent",
            "answers": {
                question.id: answer_of(question, given[str(question.id)]) if question.id in given else made_up(question)
                for question in questions
            },
            "usage": {"input_tokens": 0, "output_tokens": 0},
            "routing": dict(decision),
        }


@contextmanager
def answering(answers: Answers = None, *, app: PredictionApp = default_app) -> Iterator[AnsweringService]:
    """Answer every task in this process, for the block, and remember what was submitted.

    Args:
        answers: what to answer: a mapping of question id to a choice's label, a score's level, a noul's truth or
            probability, or a whole answer; or a function of `(state, questions, **options)` that returns such a
            mapping or a whole result, or raises. Questions left out get an undecided answer.
        app: the app whose tasks are meant; the one of this process unless you made another.
    """
    service = AnsweringService(answers, app)
    before = app.service, app.conf.task_always_eager
    app.service, app.conf.task_always_eager = service, True
    try:
        yield service
    finally:
        app.service, app.conf.task_always_eager = before


def made_up(question: Question) -> dict[str, Any]:
    """An undecided answer: every option equally likely."""
    return _answer(question, [1 / question.k] * question.k)


def answer_of(question: Question, value: Any) -> dict[str, Any]:
    """A certain answer of that value; a mapping is taken for a whole answer.

    Raises:
        ValueError: the question has no such option.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if question.qtype == "noul" and isinstance(value, int | float) and 0 <= value <= 1:
        return _answer(question, [1 - value, float(value)])
    if value not in question.labels:
        raise ValueError(f"question {question.id!r} has no option {value!r}: its options are {list(question.labels)!r}")
    chosen = question.labels.index(value)
    return _answer(question, [float(slot == chosen) for slot in range(question.k)])


def _answer(question: Question, odds: Sequence[float]) -> dict[str, Any]:
    """An answer in the shape of the library's, with these probabilities."""
    odds = [round(value, 4) for value in odds]
    top = max(odds)
    fields: dict[str, Any] = {"type": question.qtype}
    if question.qtype == "choice":
        fields["choice"] = question.labels[odds.index(top)]
        fields["probabilities"] = dict(zip(question.labels, odds, strict=True))
    elif question.qtype == "score":
        fields["score"] = round(sum(level * value for level, value in enumerate(odds)), 4)
        fields["legend"] = {str(level): text for level, text in enumerate(question.legend)}
        fields["probabilities"] = {str(level): value for level, value in enumerate(odds)}
    else:
        fields["noul"] = odds[1]
    return {
        **fields,
        # The library's is an entropy; certain and undecided answers have the same value either way.
        "confidence": top if question.qtype == "noul" or question.k < 2 else float(top == 1.0),
        "answer_confidence": top,
        "action": {"act_probability": 1.0},
    }
