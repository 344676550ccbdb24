"""A worker's log without the texts of requests, and without lines that a message forged.

Celery logs arguments when it debugs, bodies of messages that it cannot use, and errors with their texts. The filter
here rewrites those fields of a record, by what the record is; what an error may tell is `worker.redaction`'s.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Final

from celery import signals
from celery.worker.consumer import consumer

from worker.redaction import NOT_SHOWN, escaped, places, told, unwrapped

_TRACE: Final = "celery.app.trace"

# Loggers of what works on requests: an error that they log may quote one.
_OF_REQUESTS: Final = (_TRACE, "celery.worker.request", "celery.worker.strategy", "celery.pool")
_OF_OURS: Final = (
    *("laya.", "hooks.", "producer.transport"),
    *("worker.serving", "worker.settling", "worker.redelivery", "worker.unreadable"),
)

# What Celery says of a message that it cannot use, by its template: that it was discarded, and what its body was. It is
# kept, and `worker.unreadable` has said so in one line.
_OF_MESSAGES: Final = frozenset(
    {
        consumer.UNKNOWN_FORMAT,
        consumer.UNKNOWN_TASK_ERROR,
        consumer.INVALID_TASK_ERROR,
        consumer.MESSAGE_DECODE_ERROR,
    }
)
_MESSAGES: Final = "celery.worker.consumer.consumer"

_SEEN: Final = "laya_rewritten"  # on a record; its logger and each of its handlers have the filter

_FAILED_HOOK: Final = re.compile(r"hook \S{1,200} failed: ")


class Discreet(logging.Filter):
    """Withholds what requests hold, and keeps every argument of a record on its line."""

    def __init__(self, *, log_state: bool) -> None:
        """Withhold nothing if `log_state`; texts stay on their lines all the same."""
        super().__init__()
        self._log_state = log_state

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite a record, once; every record is logged but for those that would not be true."""
        if record.name == _MESSAGES and str(record.msg) in _OF_MESSAGES:
            return False
        if not getattr(record, _SEEN, False):
            setattr(record, _SEEN, True)
            if not self._log_state:
                _withhold(record)
            record.args = _on_one_line(record.args)
        return True


def install(*, log_state: bool) -> None:
    """Put the filter on Celery's loggers of messages, and on whatever Celery's set-up lets write."""
    discreet = Discreet(log_state=log_state)
    for name in (*_OF_REQUESTS, _MESSAGES):
        logging.getLogger(name).addFilter(discreet)

    def on_handlers(logger: logging.Logger, **_: Any) -> None:
        for handler in logger.handlers:
            handler.addFilter(discreet)

    signals.after_setup_logger.connect(on_handlers, weak=False)
    signals.after_setup_task_logger.connect(on_handlers, weak=False)
    if not log_state:
        _tell_failed_hooks()


def _tell_failed_hooks() -> None:
    """Warn of the failure of a hook that may fail, without its text; Python would keep that text for ever, too."""
    formats = warnings.formatwarning

    def formatted(message: Any, category: type[Warning], *args: Any, **kwargs: Any) -> str:
        error = sys.exc_info()[1]  # the library warns while it handles the hook's error
        if category is RuntimeWarning and (found := _FAILED_HOOK.match(str(message))):
            message = f"{found[0]}{told(error) if error else NOT_SHOWN}"
        return formats(message, category, *args, **kwargs)

    warnings.filterwarnings("always", _FAILED_HOOK.pattern, RuntimeWarning)
    warnings.formatwarning = formatted


class _Told:
    """An error as an argument of a record, whichever way it is formatted."""

    def __init__(self, error: BaseException) -> None:
        self._text = told(error)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


class _OneLine:
    """An argument of a record whose text has no control characters, whichever way it is formatted."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __str__(self) -> str:
        return escaped(str(self._value))

    def __repr__(self) -> str:
        return escaped(repr(self._value))


def _on_one_line(args: Any) -> Any:
    if isinstance(args, Mapping):
        return {name: _argument(value) for name, value in args.items()}
    return tuple(_argument(value) for value in args) if isinstance(args, tuple) else args


def _argument(value: Any) -> Any:
    if value is None or isinstance(value, int | float | _OneLine | _Told):
        return value
    return escaped(value) if isinstance(value, str) else _OneLine(value)


def _withhold(record: logging.LogRecord) -> None:
    if record.name == "celery.pool" and isinstance(record.args, tuple) and len(record.args) == 3:  # Apply target, …
        record.args = (record.args[0], NOT_SHOWN, NOT_SHOWN)
    if record.name in _OF_REQUESTS or record.name.startswith(_OF_OURS):
        _withhold_error(record)


def _withhold_error(record: logging.LogRecord) -> None:
    """Tell of the error that a record is about its class and its places."""
    _, error, trace = record.exc_info if isinstance(record.exc_info, tuple) else (None, None, None)
    # Celery logs an expected error without it, in the block that handles it.
    error = unwrapped(error or sys.exc_info()[1])
    if record.name == _TRACE and isinstance(record.args, Mapping) and "exc" in record.args:
        traced = {"traceback": places(error, trace) if error else NOT_SHOWN} if "traceback" in record.args else {}
        record.args = {**record.args, "exc": told(error) if error else NOT_SHOWN, **traced}
        record.data = record.args
    elif isinstance(record.args, tuple):
        record.args = tuple(_Told(one) if isinstance(one, BaseException) else one for one in record.args)
    if record.exc_info and error is not None:
        record.exc_info, record.exc_text = None, places(error, trace)
