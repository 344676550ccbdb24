"""How results are kept and awaited: Celery's Redis store, without a subscription for each published task.

Celery's own subscribes to every result when its task is published, wanted or not, and a backend that submits and
never looks grows without bound. This one subscribes when somebody waits. Waiting for many results at once, and
from asyncio, is `producer.watch`'s work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from celery.backends import redis as celery_redis

from producer.errors import DeadlineExceeded
from producer.watch import ResultWatch

_LOOK_AGAIN_SECONDS = 1.0


class ResultConsumer(celery_redis.ResultConsumer):  # type: ignore[misc] # celery has no types
    """Waits for the results of `AsyncResult.get`, and does not trust that every notice arrives.

    The subscription and the first look at the result travel on two connections. Should a result be stored between
    them, or its notice be lost with a connection, the next look finds it.
    """

    def _wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        on_interval: Callable[[], Any] | None = None,
        on_message: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> Iterator[None]:
        looked = time.monotonic()

        def look_again() -> None:
            nonlocal looked
            if time.monotonic() - looked >= _LOOK_AGAIN_SECONDS:
                looked = time.monotonic()
                self.on_wait_for_pending(result)
            if on_interval:
                on_interval()

        waiting: Iterator[None] = super()._wait_for_pending(
            result, timeout=timeout, on_interval=look_again, on_message=on_message, **kwargs
        )
        return waiting


class ResultStore(celery_redis.RedisBackend):  # type: ignore[misc] # celery has no types
    """Celery's Redis result store for both sides, in Celery's own layout."""

    ResultConsumer = ResultConsumer

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Subscribe to nothing: a published task is no task that somebody waits for."""

    def mark_as_revoked(
        self, task_id: str, reason: str = "", request: Any = None, store_result: bool = True, **kwargs: Any
    ) -> None:
        """Store the outcome of a task that will not run; one that came too late is a `DeadlineExceeded`."""
        if reason != "expired":
            super().mark_as_revoked(task_id, reason, request=request, store_result=store_result, **kwargs)
            return
        error = DeadlineExceeded("the request waited in the queue until its time was up", {"task_id": task_id})
        self.mark_as_failure(task_id, error, request=request, store_result=store_result)

    @cached_property
    def watch(self) -> ResultWatch:
        """The one subscription of this process for those who wait with a future."""
        return ResultWatch(self)
