"""A message that reached the wrong worker: published once more, unchanged, to the queue of its checkpoint.

Which worker is the wrong one is the worker's to say. The result stays as it is until the message is answered where it
goes; a worker that dies in between has it delivered again, so it is answered at least once, as any other.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Final

from celery.exceptions import Ignore

from laya.routing import AnsweredElsewhere
from producer.checkpoints import queue_of
from producer.transport_message import SENT

HANDED_HEADER: Final = "laya-handed"
"""Header that says how often a message has been handed over. Once is as often as it gets."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """How the message that is being worked on came here: by which queue, and handed over how often."""

    queue: str
    handed: int


_arrival: ContextVar[Arrival | None] = ContextVar("laya_arrival", default=None)


def arrival() -> Arrival | None:
    """How the message of this call came, or None where it may not be handed over (eager, or many in one message)."""
    return _arrival.get()


class may_be_handed_over:  # noqa: N801 - used as a function is
    """Let the running message of a task, `request`, be answered elsewhere, if the block says so: `AnsweredElsewhere`.

    Raises:
        Ignore: it was published for others; nothing is to be stored here.
    """

    __slots__ = ("_before", "_request", "_task")

    def __init__(self, task: Any, request: Any) -> None:
        """See the class."""
        self._task, self._request = task, request
        self._before: Token[Arrival | None] | None = None

    def __enter__(self) -> None:
        """Say how the message came, unless it came by no queue."""
        request = self._request
        if request.is_eager or request.called_directly:
            return
        handed = (request.headers or {}).get(HANDED_HEADER, 0)
        queue = (request.delivery_info or {}).get("routing_key") or ""
        self._before = _arrival.set(Arrival(queue, handed if isinstance(handed, int) else 1))

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Hand it over, if that is how the block ended."""
        if self._before is None:
            return
        _arrival.reset(self._before)
        if isinstance(error, AnsweredElsewhere):
            hand_over(self._task, error.checkpoint)
            raise Ignore from None  # the message is acknowledged after this, and so after the other is published


def hand_over(task: Any, checkpoint: str) -> None:
    """Publish the running message once more: same id, options, links and time of sending, another queue.

    Raises:
        BrokerUnavailable: it could not be published; the message here is not lost.
    """
    request = task.request
    again = task.signature_from_request(request, queue=queue_of(checkpoint))
    again.options["headers"] = {**(again.options.get("headers") or {}), HANDED_HEADER: 1}
    again.options["argsrepr"], again.options["kwargsrepr"] = request.argsrepr, request.kwargsrepr
    sent = (request.properties or {}).get(SENT)
    if sent is not None:
        again.options[SENT] = sent
    again.apply_async()
