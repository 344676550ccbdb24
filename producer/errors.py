"""What can go wrong between a backend and a checkpoint's answer, as one tree that a caller can catch.

Each docstring is the message: what happened, and what to do next. The errors cross the queue as JSON (class
name, message, fields), so a backend catches the same class that a worker raised.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, ClassVar

Entry = dict[str, Any]
"""An error as it stands in a list of results: ``{"error": {"type", "message", "fields"}}``."""


class LayaError(Exception):
    """A prediction could not be asked for or answered. Catch this to catch every error of this package."""

    args: tuple[Any, ...]
    retry: ClassVar[bool] = False
    """Whether the same request may well succeed a little later."""

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

    def as_entry(self) -> Entry:
        """The error as JSON, for a list of results in which other requests are answered."""
        return {"error": {"type": type(self).__name__, "message": self.message, "fields": self.fields}}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> LayaError:
        """The error that :meth:`as_entry` wrote down; an unknown type becomes a :class:`PredictionFailed`."""
        error = entry["error"]
        kind = _BY_NAME.get(error.get("type"), PredictionFailed)
        return kind(error.get("message"), error.get("fields"))


class InvalidRequest(LayaError):
    """The request cannot be asked as it stands. Correct it: it fails in the same way however often it is sent."""

    @property
    def question(self) -> str | int | None:
        """The id of the question at fault, or None when it is not about one question."""
        return self.fields.get("question")


class UnknownCheckpoint(LayaError):
    """No checkpoint of this name is registered. Use one of the known names, or add it to LAYA_CHECKPOINTS here
    and on the workers."""

    @property
    def checkpoint(self) -> str | None:
        """The name that was asked for."""
        return self.fields.get("checkpoint")

    @property
    def known(self) -> list[str]:
        """The names that are registered."""
        return list(self.fields.get("known", ()))


class PayloadTooLarge(LayaError):
    """The request is larger than LAYA_MAX_PAYLOAD allows. Send less text, fewer questions, or fewer requests in
    one message; or raise LAYA_MAX_PAYLOAD here and on the workers."""

    @property
    def size(self) -> int | None:
        """The size of the request as JSON in UTF-8, in bytes; of what was counted before giving up."""
        return self.fields.get("size")

    @property
    def limit(self) -> int | None:
        """The limit, in bytes."""
        return self.fields.get("limit")


class QueueFull(LayaError):
    """More requests wait for this checkpoint than its queue may hold. Try again later, shed load, or add workers."""

    retry = True


class BrokerUnavailable(LayaError):
    """The server that carries requests and results cannot be reached. Check that it runs and that LAYA_BROKER_URL
    and LAYA_RESULT_URL name it; then try again."""

    retry = True


class DeadlineExceeded(LayaError):
    """The answer did not come in time. Allow more time, or add workers: the queue may be longer than the
    timeout."""

    retry = True


class PredictionFailed(LayaError):
    """A worker could not compute the answer. Its log holds the traceback under the task's id."""

    @property
    def cause(self) -> str | None:
        """The class name of the error inside the worker."""
        return self.fields.get("cause")


class PoisonedRequest(LayaError):
    """Workers died while they worked on this request, so it was set aside. Find out what in it does that
    before you send it again."""


class CheckpointUnavailable(LayaError):
    """The checkpoint is registered, but a worker could not load it. Check its place in LAYA_CHECKPOINTS, the
    worker's disk and memory, and its access to the Hub; then try again."""

    retry = True

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
        return repr(value)
