"""How a task was answered: by which worker, in what time, and how many of its requests a cache brought.

A worker notes it while it answers; it is stored beside the result, in a field of its own, so that the result itself is
the same however it was come by.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from producer.transport_message import SENT

if TYPE_CHECKING:
    from producer.app import PredictionApp

FIELD: Final = "served"
"""Where it stands, in a task's request and beside its result."""


class Served(TypedDict):
    """What is told of an answered task.

    Attributes:
        worker: the node's name.
        seconds: what the worker took.
        waited: the seconds before that, as far as the clocks of both machines agree; None for a message of another
            producer's.
        requests, hits: how many requests the task carried, and how many of them a hook of the worker answered from what
            it had (a cache).
        checkpoints: names of those that answered.
    """

    worker: str
    seconds: float
    waited: float | None
    requests: int
    hits: int
    checkpoints: list[str]


@dataclass(slots=True)
class Notes:
    """What a worker notes of the task that it answers; `task_id` is not stored."""

    worker: str
    task_id: str | None = None
    seconds: float = 0.0
    waited: float | None = None
    requests: int = 0
    hits: int = 0
    checkpoints: list[str] = field(default_factory=list)

    def add(self, checkpoint: str | None, *, hit: bool) -> None:
        """One more request has ended."""
        self.requests += 1
        self.hits += hit
        if checkpoint is not None and checkpoint not in self.checkpoints:
            self.checkpoints.append(checkpoint)

    def told(self) -> Served:
        """As it is stored."""
        return Served(
            worker=self.worker,
            seconds=self.seconds,
            waited=self.waited,
            requests=self.requests,
            hits=self.hits,
            checkpoints=self.checkpoints,
        )


_notes: ContextVar[Notes | None] = ContextVar("laya_served", default=None)


def notes() -> Notes | None:
    """The notes of the task that is being answered here, None outside of one."""
    return _notes.get()


def waited(request: Any) -> float | None:
    """Seconds since a task's message was first published; None where it does not say."""
    sent = sent_at(request)
    return None if sent is None else round(max(0.0, time.time() - sent), 6)


def sent_at(request: Any) -> float | None:
    """The Unix time at which a task's message was first published; None where it does not say."""
    sent = (request.properties or {}).get(SENT)
    return float(sent) if isinstance(sent, int | float) else None


class noting:  # noqa: N801 - used as a function is
    """Note how the block answers the task of a request of Celery's, and put that into the request."""

    __slots__ = ("_begun", "_request", "_taken", "_token")

    def __init__(self, request: Any) -> None:
        """Note for this request."""
        self._request = request

    def __enter__(self) -> None:
        """Begin."""
        request = self._request
        self._begun = time.perf_counter()
        self._taken = Notes(str(request.hostname or ""), request.id, waited=waited(request))
        self._token: Token[Notes | None] = _notes.set(self._taken)

    def __exit__(self, *_: object) -> None:
        """Hand the notes over."""
        _notes.reset(self._token)
        self._taken.seconds = round(time.perf_counter() - self._begun, 6)
        setattr(self._request, FIELD, self._taken.told())


def served(task_id: str, on: PredictionApp | None = None) -> Served | None:
    """How a task was answered; None while it is not, or where its worker told nothing.

    Args:
        task_id: of `AsyncResult.id`, or as given to `predict(..., task_id=...)`.
        on: the app that it was published with, the process's own by default.
    """
    if on is None:
        from producer.app import app  # noqa: PLC0415 - this module is a part of what the app is made of

        on = app
    facts: Served | None = on.backend.get_task_meta(task_id).get(FIELD)
    return facts
