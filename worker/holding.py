"""A worker that lives keeps its messages: what it works on does not become overdue, however long that takes.

The visibility timeout tells that a worker has died. So a living one renews the records of its messages, those that wait
here for their countdown as well, long before they are overdue; another worker gets them that long after its death.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any, Final

from celery import bootsteps
from celery.worker import state

from producer.transport_records import QoS
from worker.in_hand import copied

logger = logging.getLogger(__name__)

RENEWALS: Final = 3
"""Renewals in one visibility timeout: one or two may fail."""

AT_MOST_S: Final = 3600.0
"""Seconds for which a message is held at most, countdown not counted: who works on one longer has lost it, and another
worker gets it."""


class HoldingStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Renews the records of a consumer's messages, at each connection anew."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        """See the class."""
        super().__init__(parent, **options)
        self._entry: Any = None
        self._since: dict[str, float] = {}

    def start(self, parent: Any) -> None:
        """Renew now and then from here on."""
        channel = parent.task_consumer.channel
        if isinstance(channel.qos, QoS):
            every = channel.visibility_timeout / RENEWALS
            self._entry = parent.timer.call_repeatedly(every, self._renew, (channel,))

    def stop(self, parent: Any) -> None:
        """Renew no more: what is not finished is put back, or becomes overdue."""
        if self._entry is not None:
            parent.timer.cancel(self._entry)
            self._entry = None

    shutdown = stop

    def _renew(self, channel: Any) -> None:
        now = monotonic()
        at_work = _tags(state.reserved_requests)
        self._since = {tag: self._since.get(tag, now) for tag in at_work}
        tags = [tag for tag, since in self._since.items() if now - since < AT_MOST_S]
        channel.attempt(lambda: channel.records.renew([*tags, *_tags(state.scheduled_requests)]), "keep its messages")


def _tags(requests: Any) -> list[str]:
    return [request.message.delivery_tag for request in copied(requests)]
