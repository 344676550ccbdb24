"""Messages that are none of ours, or cannot be read: kept as dead letters, their callers answered, once and for all.

Celery logs such a message and drops it; one that makes its consumer fail would come back with every visibility timeout.
What is not even a message of kombu's is set aside by the queue's wire before it comes here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from celery import bootsteps

from producer.errors import InvalidRequest
from producer.transport_message import Message, Taken
from producer.transport_records import QoS
from worker.dead import DeadLetters, Kind, letter_of, task_id_of
from worker.deliveries import Deliveries
from worker.redaction import told

logger = logging.getLogger(__name__)

CONSUMER_FAILED: Final = "no worker could begin it"


class Unreadable:
    """Sets messages aside that a worker cannot begin."""

    def __init__(self, app: Any) -> None:
        """Those of the app's broker."""
        self._app = app
        self._settings = app.settings
        self._deliveries, self._letters = Deliveries(app), DeadLetters(app)

    def set_aside(self, message: Any, kind: Kind, reason: str, *, answer: bool = True) -> None:
        """Keep a message as a dead letter, and tell whoever waits for its result."""
        letter = letter_of(message, kind, reason)
        self._letters.add(letter, message._raw, keep=self._settings.dead_max, seconds=self._settings.dead_ttl)
        logger.error(
            "A message of the queue %r (task %s) is dead-lettered as %s: %s",
            *(letter.queue, letter.task or "unnamed", letter.id, reason),
        )
        task_id = task_id_of(message)
        if answer and task_id is not None:
            error = InvalidRequest(f"the message cannot be read ({reason}): it is set aside as a dead letter")
            self._app.backend.mark_as_failure(task_id, error)

    def unhandled(self, raw: Taken, channel: Any, error: Exception) -> bool:
        """Take over a message at which the consumer failed, if it has done so as often as workers may die of one.

        The first times it stays on record, to come again: the failure may be ours.
        """
        message = Message(raw, channel=channel)
        key = task_id_of(message) or str(message.delivery_tag)
        if self._deliveries.begin(key, self._settings.max_deliveries):
            return False
        self.set_aside(message, "unreadable", f"{CONSUMER_FAILED}: {type(error).__name__}")
        self._deliveries.forget(key)
        return True


class UnreadableStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Takes over what a consumer does with messages that it cannot use, at each connection anew."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        """Remember what Celery's consumer does itself."""
        super().__init__(parent, **options)
        self._unreadable = Unreadable(parent.app)
        self._take_over(parent)

    def start(self, parent: Any) -> None:
        """Tell the channel that the task consumer has just got."""
        qos = parent.task_consumer.channel.qos
        if isinstance(qos, QoS):
            qos.unhandled = self._unreadable.unhandled

    def _take_over(self, consumer: Any) -> None:
        set_aside = self._unreadable.set_aside
        unknown_message, unknown_task = consumer.on_unknown_message, consumer.on_unknown_task
        invalid_task, decode_error = consumer.on_invalid_task, consumer.on_decode_error

        def on_unknown_message(body: Any, message: Any) -> None:
            set_aside(message, "unreadable", "it names no task")
            unknown_message(body, message)

        def on_unknown_task(body: Any, message: Any, error: Any) -> None:
            # Celery itself answers these, with a NotRegistered: whoever sent one is no producer of ours.
            set_aside(message, "unknown task", "this worker knows no such task", answer=False)
            unknown_task(body, message, error)

        def on_invalid_task(body: Any, message: Any, error: Any) -> None:
            set_aside(message, "unreadable", reason_of(error))
            invalid_task(body, message, error)

        def on_decode_error(message: Any, error: Any) -> None:
            set_aside(message, "unreadable", f"its body cannot be decoded: {told(error)}")
            decode_error(message, error)

        takers: dict[str, Callable[..., None]] = {
            "on_unknown_message": on_unknown_message,
            "on_unknown_task": on_unknown_task,
            "on_invalid_task": on_invalid_task,
            "on_decode_error": on_decode_error,
        }
        for name, taker in takers.items():
            setattr(consumer, name, taker)


def reason_of(error: BaseException) -> str:
    """An error of Celery's about a message, without what may be text of it."""
    own = str(error) if type(error).__name__ == "InvalidTaskError" and len(str(error)) < 100 else ""
    return own or told(error)
