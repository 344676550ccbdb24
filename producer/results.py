"""How results are kept and awaited: Celery's Redis store, without a subscription for each published task.

Celery's own subscribes to every result when its task is published, wanted or not, and a backend that submits and
never looks grows without bound. This one subscribes when somebody waits; storing is `producer.result_writer`'s.
Waiting for many results at once, and from asyncio, is `producer.watch`'s work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from celery import states
from celery.backends import redis as celery_redis
from celery.exceptions import BackendStoreError
from kombu.utils.encoding import bytes_to_str

from producer.errors import DeadlineExceeded
from producer.result_writer import ResultWriter
from producer.watch import ResultWatch

_LOOK_AGAIN_SECONDS = 1.0


class ResultConsumer(celery_redis.ResultConsumer):
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


class ResultStore(celery_redis.RedisBackend):
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

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        """Store a state in Celery's layout, by one script where that can read what is stored already."""
        if self.serializer != "json" or self.compression:
            return super()._store_result(task_id, result, state, traceback, request, **kwargs)
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = bytes_to_str(task_id)
        key, value = self.get_key_for_task(task_id), self.encode(meta)
        if len(value) > self._MAX_STR_VALUE_SIZE:
            raise BackendStoreError("value too large for Redis backend", state=state, task_id=task_id)
        if state == states.STARTED:
            self.writer.write_progress(key, value, self.expires or 0)
        else:
            expires = self.failure_expires if state == states.FAILURE else self.expires
            self.ensure(self.writer.write, (key, value, expires or 0))
        return result

    @cached_property
    def writer(self) -> ResultWriter:
        """What carries the results of this process to the server."""
        return ResultWriter(lambda: self.client)

    @cached_property
    def watch(self) -> ResultWatch:
        """The one subscription of this process for those who wait with a future."""
        return ResultWatch(self)
