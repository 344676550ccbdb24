"""A message as a worker shows it: in events, logs and `celery inspect`, never with a state's text.

Our producers describe a message without its text. Of a message that another producer made, nothing is shown; and what
is shown can be printed. A message that Celery cannot read is refused here, as one that is invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from celery.exceptions import InvalidTaskError
from celery.utils.saferepr import saferepr
from celery.utils.time import maybe_iso8601
from celery.worker.request import Request

from producer.request import SCHEMA_HEADER
from producer.request_checks import LONGEST_ID, is_task_id
from worker.clock import clock
from worker.redaction import escaped, places, told, unwrapped

NOT_SHOWN: Final = "(not shown: from another producer)"

_IDS: Final = ("root_id", "parent_id", "group")


class PredictionMessage(Request):  # type: ignore[misc] # celery has no types
    """Celery's request, for every task of a worker."""

    def __init__(self, message: Any, **options: Any) -> None:
        """Read the message; hide its arguments unless a producer of ours described them.

        Raises:
            InvalidTaskError: it is no message that a task can be run from.
        """
        try:
            super().__init__(message, maybe_iso8601=_time_of, **options)
        except InvalidTaskError:
            raise InvalidTaskError("its eta or its expires is no time") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise InvalidTaskError(f"its headers or its body cannot be read: {type(error).__name__}") from None
        self._check()
        self._describe()
        self._failure: Any = None

    @property
    def tzlocal(self) -> Any:
        """The zone of times that name none: the app's, where Celery looks through all its settings each time."""
        return self._app.timezone

    def info(self, safe: bool = True) -> dict[str, Any]:  # noqa: ARG002 - never the arguments themselves
        """What `celery inspect` shows."""
        shown: dict[str, Any] = super().info(safe=True)
        return shown

    def maybe_expire(self) -> bool | None:
        """Revoke the message if nobody waits for it any longer, by the clock that deadlines are judged by."""
        if self.expires and clock.now() <= self.expires.timestamp():
            return None
        expired: bool | None = super().maybe_expire()
        return expired

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Settle a failed task; its event tells the error's class, and where it was raised."""
        self._failure = exc_info
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def on_retry(self, exc_info: Any) -> Any:
        """The same for one that is to be tried again."""
        self._failure = exc_info
        return super().on_retry(exc_info)

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's name
        """Send an event, without the text of an error."""
        if "exception" in fields and not self._shows_state:
            error = unwrapped(self._failure.exception) if self._failure is not None else None
            fields |= {"exception": "", "traceback": ""}
            if isinstance(error, BaseException):
                fields |= {"exception": told(error), "traceback": places(error, self._failure.tb)}
        super().send_event(type, **fields)

    @property
    def _shows_state(self) -> bool:
        return bool(getattr(self._app.settings, "events_show_state", False))

    def _check(self) -> None:
        """Refuse what Celery would stumble over later.

        Raises:
            InvalidTaskError: the id, the arguments or what goes with them are none.
        """
        for what, value in (("id", self.id), *((name, self._request_dict.get(name)) for name in _IDS)):
            if what != "id" and value is None:
                continue
            if not is_task_id(value):
                raise InvalidTaskError(f"its {what} is no text of at most {LONGEST_ID} characters that can be printed")
        if not isinstance(self._args, list | tuple) or not isinstance(self._kwargs, Mapping):
            raise InvalidTaskError("its arguments are no list and no mapping")
        if not isinstance(self._payload[2], Mapping | None):
            raise InvalidTaskError("what goes with its arguments is no mapping")

    def _describe(self) -> None:
        """Say what may be shown of the message."""
        self.time_limits = (None, None)  # a pool of threads has none, whatever the message says
        shadow: Any = self._request_dict.get("shadow")
        self.name = escaped(shadow) if shadow and isinstance(shadow, str) else self._type
        if self._shows_state:
            described = (saferepr(self._args), saferepr(self._kwargs))
        elif SCHEMA_HEADER in self._request_dict:
            headers = self._request_dict
            described = (str(headers.get("argsrepr", "")), str(headers.get("kwargsrepr", "")))
        else:
            described = (NOT_SHOWN, NOT_SHOWN)
        arguments, options = (escaped(text) for text in described)
        self._argsrepr, self._kwargsrepr = arguments, options
        # The tracer describes by what the message says, and otherwise by the arguments themselves.
        self._request_dict |= {"argsrepr": arguments, "kwargsrepr": options, "shadow": self.name}


def _time_of(value: Any) -> datetime | None:
    """The time that a message says, as Python reads it at once, or else as Celery does at a hundred times the cost."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        read: datetime | None = maybe_iso8601(value)
        return read
