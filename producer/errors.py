"""What can go wrong between a backend and a checkpoint's answer, as one tree that a caller can catch.

Each docstring is the message: what happened, and what to do next. The errors cross the queue as JSON (class
name, message, fields), so a backend catches the same class that a worker raised.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from laya.questions import shown

Entry = dict[str, Any]
"""An error as it stands in a list of results: ``{"error": {"type", "message", "fields"}}``."""


class LayaError(Exception):
    """A prediction could not be asked for or answered. Catch this to catch every error of this package."""

    args: tuple[Any, ...]
    retry: ClassVar[bool] = False
    """Whether the same request may well succeed a little later."""

    http_status: ClassVar[int] = 500
    """The HTTP status (RFC 9110, RFC 6585) by which a backend best says it to its own client."""

    def __init__(self, message: str | None = None, fields: Mapping[str, Any] | None = None) -> None:
        """Say what happened.

        Args:
            message: what happened this time; the class's docstring if None.
            fields: further facts by name. What JSON cannot express is replaced by its repr.

        Both stay in ``args``, from which a result store rebuilds the error on the other side.
        """
        self.message = message or self.advice()
        self.fields = {str(name): _plain(value) for name, value in (fields or {}).items()}
        super().__init__(self.message, self.fields)
        if self.message != self.advice():
            self.add_note(self.advice())

    def __str__(self) -> str:
        """What happened, for a person."""
        return self.message

    @classmethod
    def advice(cls) -> str:
        """The class's docstring on one line: the general case, and what to do next."""
        return " ".join(inspect.cleandoc(cls.__doc__ or cls.__name__).split())

    @property
    def retry_after(self) -> int | None:
        """Seconds for HTTP's `Retry-After`; None where trying again makes no sense."""
        return math.ceil(self.fields.get("retry_after", 1)) if self.retry else None

    def as_entry(self) -> Entry:
        """The error as JSON, for a list of results in which other requests are answered."""
        return {"error": {"type": type(self).__name__, "message": self.message, "fields": self.fields}}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> LayaError:
        """The error that :meth:`as_entry` wrote down; an unknown type becomes a :class:`PredictionFailed`."""
        error = entry["error"]
        name, message, fields = error.get("type"), error.get("message"), error.get("fields")
        # An entry may come from anybody: what is no text and no mapping is left out.
        kind = _BY_NAME.get(name, PredictionFailed) if isinstance(name, str) else PredictionFailed
        return kind(message if isinstance(message, str) else None, fields if isinstance(fields, Mapping) else None)


class InvalidRequest(LayaError):
    """The request cannot be asked as it stands. Correct it: it fails in the same way however often it is sent."""

    http_status = 422

    @property
    def question(self) -> str | int | None:
        """The id of the question at fault, or None when it is not about one question."""
        return self.fields.get("question")


class UnknownCheckpoint(LayaError):
    """No checkpoint of this name is registered. Use one of the known names, or add it to LAYA_CHECKPOINTS here
    and on the workers."""

    http_status = 422

    @property
    def checkpoint(self) -> str | None:
        """The name that was asked for."""
        return self.fields.get("checkpoint")

    @property
    def known(self) -> list[str]:
        """The names that are registered."""
        return list(self.fields.get("known", ()))


class PayloadTooLarge(LayaError):
    """The request is larger than a setting allows: LAYA_MAX_PAYLOAD, LAYA_MAX_TEXT or LAYA_MAX_BATCH. Send less
    text, fewer questions, or fewer requests in one message; or raise the setting here and on the workers."""

    http_status = 413

    @property
    def setting(self) -> str | None:
        """The name of the setting."""
        return self.fields.get("setting")

    @property
    def size(self) -> int | None:
        """What was counted before giving up: bytes of JSON in UTF-8, characters of one text, or requests."""
        return self.fields.get("size")

    @property
    def limit(self) -> int | None:
        """The limit, in the same unit."""
        return self.fields.get("limit")


class QueueFull(LayaError):
    """As many messages wait for this checkpoint as LAYA_MAX_QUEUE allows. Try again later, shed load, or add
    workers."""

    retry = True
    http_status = 429

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint whose queue is full."""
        return self.fields.get("checkpoint")

    @property
    def waiting(self) -> int | None:
        """The messages that waited."""
        return self.fields.get("waiting")

    @property
    def limit(self) -> int | None:
        """How many may wait."""
        return self.fields.get("limit")


class BrokerUnavailable(LayaError):
    """The server that carries requests and results cannot be reached. Check that it runs and that LAYA_BROKER_URL
    and LAYA_RESULT_URL name it; then try again."""

    retry = True
    http_status = 503


class DeadlineExceeded(LayaError):
    """The answer did not come in time. Allow more time, or add workers: the queue may be longer than the
    timeout."""

    retry = True
    http_status = 504


class PredictionFailed(LayaError):
    """A worker could not compute the answer. Its log holds the traceback under the task's id."""

    @property
    def cause(self) -> str | None:
        """The class name of the error inside the worker."""
        return self.fields.get("cause")


class PoisonedRequest(LayaError):
    """Workers died while they worked on this request, so it was set aside. Find out what in it does that
    before you send it again: `laya-workers dead show` has it."""

    @property
    def task_id(self) -> str | None:
        """The task, by which the request is found among the dead letters."""
        return self.fields.get("task_id")

    @property
    def deliveries(self) -> int | None:
        """How often workers began to work on it."""
        return self.fields.get("deliveries")


class CheckpointUnavailable(LayaError):
    """The checkpoint is registered, but a worker could not load it. Check its place in LAYA_CHECKPOINTS, the
    worker's disk and memory, and its access to the Hub; then try again."""

    retry = True
    http_status = 503

    @property
    def checkpoint(self) -> str | None:
        """The name of the checkpoint."""
        return self.fields.get("checkpoint")


_BY_NAME: dict[Any, type[LayaError]] = {kind.__name__: kind for kind in LayaError.__subclasses__()}


def _plain(value: Any) -> Any:
    """The value as it comes out of JSON on the other side."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return shown(value)
