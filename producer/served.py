"""How a task was answered: by which worker, in what time, and how many of its requests a cache brought.

A worker notes it while it answers; it is stored beside the result, in a field of its own, so that the result itself is
the same however it was come by.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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
    """What a worker notes of the task that it answers."""

    worker: str
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


@contextmanager
def noting(request: Any) -> Iterator[None]:
    """Note how the block answers the task of a request of Celery's, and put that into the request."""
    begun = time.perf_counter()
    taken = Notes(str(request.hostname or ""), waited=waited(request))
    token = _notes.set(taken)
    try:
        yield
    finally:
        _notes.reset(token)
        taken.seconds = round(time.perf_counter() - begun, 6)
        setattr(request, FIELD, taken.told())


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
