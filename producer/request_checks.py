"""What a request must be so that it can be asked: pure JSON, within its limits, with questions the library accepts.

A backend checks before it publishes, and a worker checks again, with this same code: a message may come from a producer
that skipped it. What the questions themselves must be is the library's own check.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Final

from laya.confidence import check_min_confidence
from laya.questions import check_state, parse_questions, shown
from producer.errors import InvalidRequest, LayaError, PayloadTooLarge
from producer.jsonform import JsonForm, size_of, too_deep
from producer.limits import Limits
from producer.request import TEXT_OPTIONS, BatchItem, PredictionRequest, from_mapping, is_error

MAX_TOKENS: Final = 8192
"""The largest budget that a published checkpoint reads."""

LONGEST_ID: Final = 255
"""Characters of a task's id: it becomes part of a key, and of a line of the log."""

_BUDGETS: Final = ("max_len", "head_max_len")


def check(request: PredictionRequest, form: JsonForm) -> PredictionRequest:
    """The request as pure JSON, if it can be asked.

    Raises:
        InvalidRequest: the state is null or not JSON, a question is refused (the error names it), or an option
            has a value that cannot be meant; or it has more questions, options or levels than it may have.
        PayloadTooLarge: its text is longer than the message may be, or one text than a text may be.
    """
    try:
        check_state(request.state)
    except TypeError as error:
        raise InvalidRequest(str(error)) from None
    form.bound(request.questions, "questions")
    form.bound(request.options, "options")
    _check_questions(request.questions, form.limits)
    _check_options(request.options)
    return PredictionRequest(
        form.of(request.state, "the state"),
        form.of_repeated(request.questions, "questions"),
        form.of(request.options, "options"),
    )


def is_task_id(value: object) -> bool:
    """Whether a value can be a task's id."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_ID and value.isprintable()


def check_task_id(value: object) -> None:
    """Refuse an id of the caller's own that a worker would refuse.

    Raises:
        InvalidRequest: it is no text, too long, or cannot be printed.
    """
    if not is_task_id(value):
        raise InvalidRequest(
            f"task_id={shown(value)}: expected a text of at most {LONGEST_ID} characters that can be printed; "
            "str() makes one of a UUID",
            {"options": ["task_id"]},
        )


def check_timeout(value: object) -> float | None:
    """The seconds that a caller waits; None for as long as it takes.

    Raises:
        InvalidRequest: it is no number of seconds, or one beyond all clocks.
    """
    if value is None:
        return None
    try:
        seconds = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        seconds = math.inf
    if not abs(seconds) <= threading.TIMEOUT_MAX:
        raise InvalidRequest(
            f"timeout={shown(value)}: expected a number of seconds, or None to wait for as long as it takes",
            {"options": ["timeout"]},
        )
    return seconds


def check_size(request: PredictionRequest, limit: int) -> None:
    """Refuse a request whose JSON is longer than `limit` bytes in UTF-8.

    Raises:
        PayloadTooLarge: it is.
        InvalidRequest: it cannot be written as JSON in UTF-8.
    """
    size_of(request.as_request(), limit)


def check_batch(requests: Sequence[Any], limits: Limits) -> list[BatchItem]:
    """Each request checked, or the error that it has instead.

    Raises:
        PayloadTooLarge: they are more than one message may hold, or their text is longer than it may be. Bytes are
            not counted here, but by `producer.jsonform.size_of` before the message is published.
    """
    if len(requests) > limits.batch:
        raise PayloadTooLarge(
            f"the message has {len(requests)} requests, and LAYA_MAX_BATCH allows {limits.batch}: send several",
            {"setting": "LAYA_MAX_BATCH", "size": len(requests), "limit": limits.batch},
        )
    form = JsonForm(limits)
    return [_check_item(item, form) for item in requests]


def _check_item(item: Any, form: JsonForm) -> BatchItem:
    try:
        if is_error(item):
            return LayaError.from_entry(item).as_entry()
        if not isinstance(item, Mapping):
            raise InvalidRequest(f"a request must be a mapping, not {type(item).__name__}")
        return check(from_mapping(item), form)
    except InvalidRequest as error:
        return error.as_entry()
    except PayloadTooLarge as error:
        if form.full:
            raise
        return error.as_entry()


def _check_questions(questions: Any, limits: Limits) -> None:
    if isinstance(questions, Mapping):
        _count(questions, limits)
    try:
        parse_questions(questions)
    except RecursionError:
        raise too_deep("questions", limits) from None
    except TypeError as error:
        raise InvalidRequest(str(error)) from None
    except ValueError as error:
        raise InvalidRequest(str(error), {"question": _refused(questions)}) from None


def _count(questions: Mapping[Any, Any], limits: Limits) -> None:
    """Refuse more questions or options than there may be, before anything is made of them."""
    if len(questions) > limits.questions:
        raise InvalidRequest(
            f"the request has {len(questions)} questions, and LAYA_MAX_QUESTIONS allows {limits.questions}",
            {"setting": "LAYA_MAX_QUESTIONS", "size": len(questions), "limit": limits.questions},
        )
    for id_, definition in questions.items():
        criteria = definition.get("criteria") if isinstance(definition, Mapping) else None
        if isinstance(criteria, Mapping | list | tuple) and len(criteria) > limits.options:
            raise InvalidRequest(
                f"question {shown(id_)}: it has {len(criteria)} options, and LAYA_MAX_OPTIONS allows {limits.options}",
                {"question": id_, "setting": "LAYA_MAX_OPTIONS", "size": len(criteria), "limit": limits.options},
            )


def _refused(questions: Mapping[Any, Any]) -> Any:
    """The id of the first question that the library refuses."""
    for id_, definition in questions.items():
        try:
            parse_questions({id_: definition})
        except ValueError:
            return id_
    return None


def _check_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name in TEXT_OPTIONS and not isinstance(value, str):
            raise InvalidRequest(f"{name} must be a text, not {type(value).__name__}", {"options": [name]})
        if name in _BUDGETS and not _is_budget(value):
            raise InvalidRequest(f"{name} must be a whole number of tokens from 1 to {MAX_TOKENS}", {"options": [name]})
    if not isinstance(options.get("cache", True), bool):
        raise InvalidRequest("cache must be True or False", {"options": ["cache"]})
    try:
        check_min_confidence(options.get("min_confidence"))
    except ValueError as error:
        raise InvalidRequest(str(error), {"options": ["min_confidence"]}) from None


def _is_budget(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TOKENS
