"""How results are kept and awaited: Celery's Redis store, without a subscription for each published task.

Celery's own subscribes to every result when its task is published, wanted or not, and a backend that submits and
never looks grows without bound. This one subscribes when somebody waits; storing is `producer.result_writer`'s.
The waiting itself is `producer.watch`'s work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from functools import cached_property
from typing import Any

from celery import states
from celery.backends import redis as celery_redis
from celery.exceptions import BackendStoreError
from celery.exceptions import TimeoutError as CeleryTimeout
from kombu.exceptions import EncodeError
from kombu.utils.encoding import bytes_to_str

from producer.errors import DeadlineExceeded, PredictionFailed
from producer.result_writer import ResultWriter
from producer.served import FIELD
from producer.shown import plain
from producer.watch import Meta, ResultWatch

_INTERVAL_SECONDS = 1.0


class ResultStore(celery_redis.RedisBackend):
    """Celery's Redis result store for both sides, in Celery's own layout.

    Whoever waits, in `AsyncResult.get` or for a group, waits with a future of the watch and takes the result in his
    own thread. A result object that nobody waits with costs nothing, neither while it lives nor when it goes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the store as Celery does; nothing is connected yet."""
        super().__init__(*args, **kwargs)
        # The one subscription of this process, for all who wait.
        self.watch = ResultWatch(self)

    def close(self) -> None:
        """End the watch of results and let go of the connections. A later call opens new ones."""
        self.watch.close()
        if "client" in self.__dict__:  # Celery makes it when it is first needed
            self.client.connection_pool.disconnect()

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Subscribe to nothing: a published task is no task that somebody waits for."""

    def add_pending_result(self, result: Any, **_: Any) -> Any:
        """Subscribe to nothing: a result object is not a wait either."""
        return result

    def add_pending_results(self, results: Any, **_: Any) -> list[Any]:
        """The same for several."""
        return list(results)

    def remove_pending_result(self, result: Any) -> Any:
        """Nothing to take back. Celery calls this when a result object is deleted, at exit for each that is left."""
        return result

    def wait_for_pending(
        self,
        result: Any,
        callback: Callable[[str, Any], Any] | None = None,
        propagate: bool = True,
        timeout: float | None = None,
        on_interval: Callable[[], Any] | None = None,
        on_message: Callable[[Meta], Any] | None = None,
        **_: Any,
    ) -> Any:
        """Wait for one result, and return or raise it.

        Raises:
            celery.exceptions.TimeoutError: it did not come in time.
            BrokerUnavailable: the server stayed away for long.
        """
        for _done in self._awaited([result], timeout, on_interval, on_message):
            pass
        return result.maybe_throw(callback=callback, propagate=propagate)

    def iter_native(
        self,
        result: Any,
        timeout: float | None = None,
        on_interval: Callable[[], Any] | None = None,
        on_message: Callable[[Meta], Any] | None = None,
        **_: Any,
    ) -> Iterator[tuple[str, Any]]:
        """The (id, meta) of every result of a set, as they come; of a group inside it, the (id, results)."""
        waiting = []
        for node in result.results:
            if not hasattr(node, "_cache"):
                yield node.id, node.children
            elif node._cache:
                yield node.id, node._cache
            else:
                waiting.append(node)
        for node in self._awaited(waiting, timeout, on_interval, on_message):
            yield node.id, node._cache

    def _awaited(
        self,
        results: Sequence[Any],
        timeout: float | None,
        on_interval: Callable[[], Any] | None,
        on_message: Callable[[Meta], Any] | None,
    ) -> Iterator[Any]:
        """Each result as it is finished, with its outcome in it."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        pending = {self.watch.expect(result.id, timeout): result for result in results}
        try:
            while pending:
                left = min(_INTERVAL_SECONDS, max(0.0, until - time.monotonic()))
                done, _ = wait(pending, left, return_when=FIRST_COMPLETED)
                for future in done:
                    result, meta = pending.pop(future), future.result()
                    if on_message:
                        on_message(meta)
                    result._maybe_set_cache(meta)
                    yield result
                if on_interval:
                    on_interval()
                if pending and not done and time.monotonic() >= until:
                    raise CeleryTimeout("The operation timed out.")
        finally:
            for future in pending:
                future.cancel()

    def mark_as_revoked(
        self, task_id: str, reason: str = "", request: Any = None, store_result: bool = True, **kwargs: Any
    ) -> None:
        """Store the outcome of a task that will not run; one that came too late is a `DeadlineExceeded`."""
        if reason != "expired":
            super().mark_as_revoked(task_id, reason, request=request, store_result=store_result, **kwargs)
            return
        error = DeadlineExceeded("the request waited in the queue until its time was up", {"task_id": task_id})
        self.mark_as_failure(task_id, error, request=request, store_result=store_result)

    def _get_result_meta(self, result: Any, state: str, traceback: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        """What is stored: Celery's own fields, and how the task was answered."""
        meta = super()._get_result_meta(result, state, traceback, request, *args, **kwargs)
        if (facts := getattr(request, FIELD, None)) is not None:
            meta[FIELD] = facts
        return meta

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        """Store a state in Celery's layout, by one script where that can read what is stored already."""
        if self.serializer != "json" or self.compression:
            return super()._store_result(task_id, result, state, traceback, request, **kwargs)
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = bytes_to_str(task_id)
        key = self.get_key_for_task(task_id)
        if state == states.STARTED:
            self.writer.write_progress(key, lambda: self.encode(meta), self.expires or 0)
            return result
        value = self._encoded(meta)
        if len(value) > self._MAX_STR_VALUE_SIZE:
            raise BackendStoreError("value too large for Redis backend", state=state, task_id=task_id)
        expires = self.failure_expires if state == states.FAILURE else self.expires
        self.persist(key, value, expires or 0)
        return result

    def _encoded(self, meta: Meta) -> Any:
        """What is stored of an outcome; of many answers, those that JSON cannot express become errors at their places.

        Raises:
            kombu.exceptions.EncodeError: JSON cannot express it.
        """
        try:
            return self.encode(meta)
        except EncodeError:
            answers = plain(meta["result"])
            if not isinstance(answers, list):
                raise
            meta["result"] = [self._as_json_or_error(answer) for answer in answers]
            return self.encode(meta)

    def _as_json_or_error(self, answer: Any) -> Any:
        try:
            self.encode(answer)
        except EncodeError:
            error = PredictionFailed("the answer cannot be written as JSON: a hook of the worker put something into it")
            return error.as_entry()
        return answer

    def persist(self, key: Any, value: Any, expires: int) -> None:
        """Store a result; while the server is away, for as long as Celery's retry policy says.

        Raises:
            redis.exceptions.RedisError: as the server or the connection has it.
        """
        self.ensure(self.writer.write, (key, value, expires))

    @cached_property
    def writer(self) -> ResultWriter:
        """What carries the results of this process to the server."""
        return ResultWriter(lambda: self.client)


class SentinelResultStore(ResultStore, celery_redis.SentinelBackend):
    """The same on the primary that Redis Sentinel names."""
