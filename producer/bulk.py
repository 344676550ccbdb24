"""Many requests as few messages: cut, published in a pipeline, and their results as they come.

One message costs a worker about a millisecond whatever it carries, so a long list goes faster as messages of many
requests. What one message is, and how its requests are answered together, is `submit_predictions`'.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from celery import states
from kombu.utils.uuid import uuid

from producer.errors import (
    BrokerUnavailable,
    DeadlineExceeded,
    LayaError,
    PayloadTooLarge,
    PredictionFailed,
    QueueFull,
)
from producer.request_checks import check_timeout
from producer.tasks import SubmitPredictions, is_broker_error, is_eager, submit_predictions

if TYPE_CHECKING:  # it imports redis, which a backend needs when it first publishes, and not to start
    from producer.watch import Meta

PER_MESSAGE: Final = 64
"""Requests a message: enough that the message's own cost is small, few enough that results come steadily."""

IN_FLIGHT: Final = 32
"""Messages that wait or are worked on at a time, so that a list of any length needs bounded memory."""

ROOM_S: Final = 0.2
"""Seconds between looks at a queue that was full."""

_SIZE_SHARE: Final = 0.9  # of the largest message, which a message is cut below: the envelope needs some

Chunk = list[tuple[int, Mapping[str, Any]]]
"""The requests of one message, each with its place in the whole list."""


def predict_many(
    requests: Iterable[Mapping[str, Any]],
    *,
    timeout: float | None = None,
    per_message: int = PER_MESSAGE,
    in_flight: int = IN_FLIGHT,
    progress: Callable[[int], Any] | None = None,
    tenant: str | None = None,
    task: SubmitPredictions = submit_predictions,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Answer a long list of requests, and yield each result with the place of its request, as they come.

    Args:
        requests: mappings as for `submit_predictions`; read as far as there is room, so a generator will do.
        timeout: seconds for everything; None waits for as long as it takes.
        per_message: requests in one message at most; a message is cut earlier at `LAYA_MAX_PAYLOAD`.
        in_flight: messages under way at a time.
        progress: called with the number of results so far, after each message's.
        tenant: whose requests they are; see `producer.tenancy`.
        task: the `submit_predictions` of an app of your own.

    A request that is refused, too large or fails has an error entry as its result, `{"error": {"type", "message",
    "fields"}}`; `producer.errors.LayaError.from_entry` makes the error of it. A queue that is full is waited for: what
    is not published yet is published when there is room.

    Raises:
        BrokerUnavailable: the broker or the result store cannot be reached.
        DeadlineExceeded: `timeout` passed.
        InvalidRequest: `timeout` is no number of seconds.
        ValueError: `per_message` or `in_flight` below 1.
    """
    if per_message < 1 or in_flight < 1:
        raise ValueError(f"per_message and in_flight must be at least 1, got {per_message} and {in_flight}")
    seconds = check_timeout(timeout)
    until = None if seconds is None else time.monotonic() + seconds
    settings = task.app.settings
    chunks = cut(requests, min(per_message, settings.max_batch), int(settings.max_payload * _SIZE_SHARE))
    under_way: dict[Future[Meta], Chunk] = {}
    ready: list[Chunk] = []
    answered = 0
    try:
        while True:
            ready += islice(chunks, in_flight - len(under_way) - len(ready))
            published = _publish(ready, task, _left(until), tenant)
            under_way |= published
            ready = ready[len(published) :]
            if not under_way and not ready:
                return
            done = _some_done(under_way, _left(until), for_room=bool(ready))
            if not done and _left(until) == 0:
                raise _too_late(task, timeout, len(under_way) + len(ready))
            for future in done:
                chunk = under_way.pop(future)
                for (place, _), result in zip(chunk, _results(future.result(), len(chunk)), strict=True):
                    answered += 1
                    yield place, result
                if progress is not None:
                    progress(answered)
    finally:
        for future in under_way:
            future.cancel()


def cut(requests: Iterable[Mapping[str, Any]], per_message: int, max_bytes: int) -> Iterator[Chunk]:
    """Cut requests into lists of at most `per_message`, each below `max_bytes` as JSON unless one alone is longer."""
    chunk: Chunk = []
    size = 0
    for place, request in enumerate(requests):
        length = _length(request)
        if chunk and (len(chunk) == per_message or size + length > max_bytes):
            yield chunk
            chunk, size = [], 0
        chunk.append((place, request))
        size += length
    if chunk:
        yield chunk


def _length(request: Mapping[str, Any]) -> int:
    try:
        return len(json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")) + 2
    except (TypeError, ValueError, RecursionError):
        return 0  # not JSON: it is refused where it is checked, and travels as its error


def _some_done(under_way: Collection[Future[Meta]], left: float | None, *, for_room: bool) -> set[Future[Meta]]:
    """Those that are done, at least one unless the time is up; no longer than a look takes where room is waited for."""
    patience = left if not for_room else ROOM_S if left is None else min(ROOM_S, left)
    if not under_way:
        time.sleep(patience or 0.0)
        return set()
    return wait(under_way, timeout=patience, return_when=FIRST_COMPLETED).done


def _publish(
    chunks: list[Chunk], task: SubmitPredictions, left: float | None, tenant: str | None
) -> dict[Future[Meta], Chunk]:
    """Publish messages in one pipeline, until their queue is full; the futures of their results, in order."""
    if not chunks:
        return {}
    if is_eager(task.app):
        return {_run_here(task, chunk, tenant): chunk for chunk in chunks}
    watch = task.backend.watch
    published: dict[Future[Meta], Chunk] = {}
    try:
        with task.app.producer_or_acquire() as producer, producer.batch():
            for chunk in chunks:
                task_id = uuid()
                future = watch.expect(task_id, left)
                published[future] = chunk
                call = ([request for _, request in chunk],)
                try:
                    task.apply_async(call, task_id=task_id, expires=left, producer=producer, tenant=tenant)
                except PayloadTooLarge as error:
                    del published[future]
                    future.cancel()
                    published[_finished(states.FAILURE, error)] = chunk
                except QueueFull:
                    del published[future]
                    future.cancel()
                    break
    except BaseException as error:
        for future in published:
            future.cancel()
        if isinstance(error, LayaError) or not is_broker_error(error):
            raise
        raise BrokerUnavailable(f"the requests could not be published: {error}") from error
    return published


def _run_here(task: SubmitPredictions, chunk: Chunk, tenant: str | None) -> Future[Meta]:
    try:
        result = task.apply_async(([request for _, request in chunk],), tenant=tenant)
    except PayloadTooLarge as error:
        return _finished(states.FAILURE, error)
    return _finished(result.state, result.result)


def _finished(status: str, result: Any) -> Future[Meta]:
    future: Future[Meta] = Future()
    future.set_result({"status": status, "result": result})
    return future


def _results(meta: Meta, number: int) -> list[dict[str, Any]]:
    """The results of a finished message; when it failed as a whole, its error for each of its requests."""
    if meta["status"] == states.SUCCESS:
        results: list[dict[str, Any]] = meta["result"]
        return results
    error = meta["result"]
    if not isinstance(error, LayaError):
        error = PredictionFailed(f"the task ended as {meta['status']}: {error}", {"cause": type(error).__name__})
    return [dict(error.as_entry()) for _ in range(number)]


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _too_late(task: SubmitPredictions, timeout: float | None, waiting: int) -> LayaError:
    if task.backend.watch.lost:
        return BrokerUnavailable(f"the result store could not be reached, and {timeout} seconds have passed")
    return DeadlineExceeded(f"{waiting} messages were not answered within {timeout} seconds", {"timeout": timeout})
