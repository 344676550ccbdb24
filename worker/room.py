"""What the queue's wire is told by a worker: how many messages it can start now, and which ones it is working on.

Without a number the wire takes one message at a time beside `worker_disable_prefetch`, which answers only whether
there is room at all. Without the list it would put messages back, when the broker's connection is lost, that are
being worked on here and acknowledged soon.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.worker import state

from producer.transport_records import TAKE_AT_MOST, QoS
from worker.in_hand import copied


class RoomStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Tells the consumer's channel, at each connection anew: every one has a channel of its own."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """Tell the channel that the task consumer has just got."""
        qos = parent.task_consumer.channel.qos
        if not isinstance(qos, QoS):
            return  # the stock transport
        quarantine = getattr(parent.controller, "quarantine", None)
        if quarantine is not None:
            quarantine.reconnected()
        limit = room if parent.app.conf.worker_disable_prefetch else lambda _: TAKE_AT_MOST
        qos.room = lambda: limit(parent) if quarantine is None else quarantine.room(limit(parent))
        qos.at_work = tags_at_work


def room(consumer: Any) -> int:
    """How many messages a consumer's pool could start now. Negative where messages with a countdown came due.

    None while the result store is away, and when this worker is about to end because it hangs: what cannot be answered
    here is left to workers that may.
    """
    watchdog = getattr(consumer.controller, "watchdog", None)
    if getattr(consumer.app.backend, "waiting", 0) or (watchdog is not None and watchdog.hung):
        return 0
    limit: int = getattr(consumer.controller, "max_concurrency", None) or consumer.pool.num_processes
    return limit - len(state.reserved_requests)


def tags_at_work() -> set[str]:
    """Delivery tags of messages that this process will acknowledge. None when it is about to end."""
    if _is_set(state.should_stop) or _is_set(state.should_terminate):
        return set()
    return {request.message.delivery_tag for request in copied(state.reserved_requests)}


def _is_set(flag: Any) -> bool:
    return flag is not None and flag is not False  # an exit code otherwise, and 0 is one
