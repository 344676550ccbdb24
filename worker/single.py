"""The requests of one message that was delivered before, answered one at a time: which of them kills is found.

The first time they share a pass, and one of them may end the worker. From then on each is marked before it is begun and
after it is finished, so that the next worker knows who was at work, answers the others, and in the end leaves the
killer out. A message with one request needs none of this: it is counted as a whole.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from celery import current_task

from producer.app import PredictionApp
from producer.checkpoints import QUEUE_PREFIX
from producer.errors import Entry, PoisonedRequest
from producer.request import SCHEMA, SCHEMA_HEADER, PredictionRequest
from producer.tasks import submit_prediction
from producer.tenancy import signed_on
from worker.broker_scripts import UNREACHABLE
from worker.dead import DeadLetters, Letter, poisoned
from worker.deliveries import Deliveries
from worker.settings import WorkerSettings
from worker.suspects import is_suspect

logger = logging.getLogger(__name__)


class SingleOut:
    """One message's requests, each begun at most as often as a request may be."""

    def __init__(
        self, app: PredictionApp, settings: WorkerSettings, task_id: str, queue: str, headers: Mapping[str, Any]
    ) -> None:
        """Take on whose broker to mark them, how often one may be begun, and the message's task, queue and headers."""
        self._deliveries, self._letters = Deliveries(app), DeadLetters(app)
        self._settings = settings
        self._task_id = task_id
        self._queue = queue
        self._headers = headers

    def answer(self, place: int, request: PredictionRequest, compute: Callable[[], list[Entry]]) -> Entry:
        """The answer to one request, which is all that `compute` answers; or the error of one that workers died of."""
        try:
            if not self._deliveries.begin_one(self._task_id, place, self._settings.max_deliveries):
                return self._bury(place, request).as_entry()
            (answer,) = compute()
            self._deliveries.finish_one(self._task_id, place)
        except UNREACHABLE as error:
            logger.warning("A request of task %s is answered unmarked: %s", self._task_id, error)
            (answer,) = compute()
        return answer

    def _bury(self, place: int, request: PredictionRequest) -> PoisonedRequest:
        settings, begun = self._settings, self._settings.max_deliveries
        letter_id = f"{self._task_id}.{place}"
        message = alone(request, letter_id, self._queue)
        call = (submit_prediction.name, letter_id, *arguments(request))
        message["headers"] |= signed_on(self._headers, call, settings)
        letter = Letter(
            id=letter_id,
            kind="poisoned",
            queue=self._queue,
            task=message["headers"]["task"],
            deliveries=begun,
            at=time.time(),
            size=len(message["body"]),
            requests=1,
            questions=len(request.questions),
            reason=f"request {place} of its message; begun {begun} times, and never finished",
        )
        self._letters.add(letter, message, keep=settings.dead_max, seconds=settings.dead_ttl)
        logger.error("Request %d of task %s is dead-lettered as %s", place, self._task_id, letter_id)
        return poisoned(letter)


def single_out(app: PredictionApp, settings: WorkerSettings) -> SingleOut | None:
    """How to answer the requests of the running message one at a time; None if it came for the first time."""
    request = current_task.request if current_task else None
    if request is None or not is_suspect(request.delivery_info, request.headers):
        return None
    queue = request.delivery_info.get("routing_key") or QUEUE_PREFIX
    return SingleOut(app, settings, request.id, queue, request.headers or {})


def arguments(request: PredictionRequest) -> tuple[list[Any], dict[str, Any]]:
    """The arguments and keyword arguments of the task that asks this request alone."""
    return [request.state, request.questions], dict(request.options)


def alone(request: PredictionRequest, task_id: str, queue: str) -> dict[str, Any]:
    """A request of a message of many as a message of its own, as kombu has it."""
    return {
        "body": base64.b64encode(json.dumps([*arguments(request), {}]).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {
            "task": submit_prediction.name,
            "id": task_id,
            "root_id": task_id,
            "lang": "py",
            SCHEMA_HEADER: SCHEMA,
        },
        "properties": {
            "correlation_id": task_id,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_mode": 2,
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": task_id,
        },
    }
