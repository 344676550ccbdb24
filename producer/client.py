"""Submit a request and wait for its answer, from plain code and from asyncio.

`predict` blocks its thread, `apredict` only its coroutine. Both end in time, whatever the broker, the queue or the
workers do; what goes wrong is one of `producer.errors`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Unpack

from celery import states
from kombu.utils.uuid import uuid

from producer.errors import BrokerUnavailable, DeadlineExceeded, LayaError, PredictionFailed
from producer.request import AskingOptions
from producer.request_checks import check_task_id, check_timeout
from producer.tasks import PredictionTask, is_eager, submit_prediction

if TYPE_CHECKING:  # it imports redis, which a backend needs when it first publishes, and not to start
    from producer.watch import Meta, ResultWatch

# Publishing blocks its thread for about a millisecond. More threads than kombu has connections (10) would wait.
_PUBLISHERS: Final = 8


def predict(
    state: Any,
    questions: Mapping[Any, Any],
    timeout: float | None = 10,
    **options: Unpack[AskingOptions],
) -> dict[str, Any]:
    """Ask a worker and wait for the answer.

    Args:
        state: what the questions are about: a text, a mapping or a list, as JSON has them.
        questions: mapping of question id to definition.
        timeout: seconds for everything; None waits for as long as it takes.
        options: as for `Router.predict`: `model`, `task`, `lang`, `lang_guess`, `max_len`, `head_max_len`,
            `min_confidence`; `cache=False` keeps the answer out of the workers' cache, `tenant` says whose
            request it is, and `task_id` gives the task an id of your own.

    Returns:
        What `Router.predict` returns, as it comes out of JSON.

    Raises:
        LayaError: one of the classes of `producer.errors`.
    """
    return ask(submit_prediction, state, questions, timeout, options)


async def apredict(
    state: Any,
    questions: Mapping[Any, Any],
    timeout: float | None = 10,
    **options: Unpack[AskingOptions],
) -> dict[str, Any]:
    """Ask a worker and wait for the answer without blocking the event loop; arguments and errors as `predict`.

    Thousands may wait at once: they share one connection.
    """
    return await aask(submit_prediction, state, questions, timeout, options)


def ask(
    task: PredictionTask,
    state: Any,
    questions: Any,
    timeout: float | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """What :func:`predict` does, with the `submit_prediction` of an app of your own."""
    call = _Call(task, state, questions, timeout, options)
    try:
        return call.answer(call.publish().result(call.remaining()))
    except TimeoutError:
        raise call.too_late() from None
    finally:
        call.give_up()


async def aask(
    task: PredictionTask,
    state: Any,
    questions: Any,
    timeout: float | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """What :func:`apredict` does, with the `submit_prediction` of an app of your own."""
    call = _Call(task, state, questions, timeout, options)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(call.remaining()):
            future = await loop.run_in_executor(_publishers(os.getpid()), call.publish)
            return call.answer(await asyncio.wrap_future(future))
    except TimeoutError:
        raise call.too_late() from None
    finally:
        call.give_up()  # a cancelled caller may leave a thread behind that is still publishing


class _Call:
    """One request on its way, and the time that is left for it."""

    def __init__(
        self,
        task: PredictionTask,
        state: Any,
        questions: Any,
        timeout: float | None,
        options: Mapping[str, Any],
    ) -> None:
        self._task = task
        self._args = (state, questions)
        self._options = dict(options)
        seconds = check_timeout(timeout)
        self._timeout = timeout
        self._until = None if seconds is None else time.monotonic() + seconds
        self._id = self._options.pop("task_id", None)
        if self._id is None:
            self._id = uuid()
        check_task_id(self._id)
        self._watch: ResultWatch | None = None
        self._future: Future[Meta] | None = None
        self._given_up = False

    def remaining(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def publish(self) -> Future[Meta]:
        """Publish the request; a future of the finished task."""
        remaining = self.remaining()
        if remaining == 0:
            raise self.too_late()
        if is_eager(self._task.app):
            return self._run_here()
        self._watch = self._task.backend.watch
        future: Future[Meta] = self._watch.expect(self._id, remaining)
        self._future = future
        if self._given_up:
            future.cancel()
        else:
            self._task.publish(self._args, self._options, task_id=self._id, expires=remaining)
        return future

    def give_up(self) -> None:
        """End the wait, if it has not ended: from any thread, before, while or after the request is published."""
        self._given_up = True
        if self._future is not None:
            self._future.cancel()

    def answer(self, meta: Meta) -> dict[str, Any]:
        """The answer of a finished task, or its error raised."""
        status, result = meta["status"], meta["result"]
        if status == states.SUCCESS:
            answer: dict[str, Any] = result
            return answer
        if isinstance(result, LayaError):
            raise result
        raise PredictionFailed(
            f"the task ended as {status}: {result}", {"cause": type(result).__name__, "task_id": self._id}
        )

    def too_late(self) -> LayaError:
        if self._watch is not None and self._watch.lost:
            return BrokerUnavailable(f"the result store could not be reached for {self._timeout} seconds")
        return DeadlineExceeded(
            f"no answer within {self._timeout} seconds", {"timeout": self._timeout, "task_id": self._id}
        )

    def _run_here(self) -> Future[Meta]:
        result = self._task.apply_async(self._args, self._options, task_id=self._id)
        future: Future[Meta] = Future()
        future.set_result({"status": result.state, "result": result.result})
        return future


@cache
def _publishers(pid: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a fork leaves the threads behind
    return ThreadPoolExecutor(_PUBLISHERS, thread_name_prefix="laya-publish")
