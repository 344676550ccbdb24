"""What becomes of a message that was delivered before: answered already, begun once more, or dead-lettered.

A first delivery costs nothing here. One that comes back overdue is marked by the queue's wire, and each time that a
worker begins it, it is counted first, by the task's id: so the count is there when the worker dies of it. What came
back without having been begun is not marked, and what only waited was not counted. Who may run beside it is
`worker.suspects`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from celery import bootsteps, states
from celery.exceptions import BackendError
from celery.worker import state

from producer.app import PredictionApp
from worker.broker_scripts import UNREACHABLE
from worker.dead import DeadLetters, letter_of, poisoned
from worker.deliveries import Deliveries
from worker.in_hand import copied
from worker.quarantine import Quarantine
from worker.settings import WorkerSettings

logger = logging.getLogger(__name__)

_OVER: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVOKED})


@dataclass(slots=True)
class Outcomes:
    """What became of suspects since the start, for metrics: begun again, answered before, dead-lettered."""

    repeated: int = 0
    answered_before: int = 0
    poisoned: int = 0


class Redelivery:
    """Examines suspects in threads of the pool, and begins those that may be begun."""

    def __init__(self, app: PredictionApp, settings: WorkerSettings, start: Callable[[Any], None]) -> None:
        """Take on whose broker to count and keep messages, how often one may be begun, and what begins one."""
        self._settings = settings
        self._deliveries, self._letters = Deliveries(app), DeadLetters(app)
        self._start = start
        self._counted: set[str] = set()
        self.outcomes = Outcomes()

    def examine(self, request: Any, at_most: int) -> None:
        """Begin a suspect, or settle it otherwise. Where that cannot be decided, it stays on record, to come again.

        Args:
            request: the suspect.
            at_most: how often workers may have begun it, this time included. Less than `LAYA_MAX_DELIVERIES` where it
                is not alone: what was begun more often is not dead-lettered then, but comes again.
        """
        try:
            self._examine(request, at_most)
        except (*UNREACHABLE, BackendError) as error:
            logger.warning("Task %s was delivered before, and it cannot be found out how often: %s", request.id, error)
            self._leave(request)
        except Exception:
            logger.exception("Task %s was delivered before, and could not be begun again", request.id)
            self._leave(request)

    def give_back(self, requests: Iterable[Any]) -> None:
        """This worker ends, and puts these messages back: what it counted of them is not what it ended of."""
        try:
            for request in requests:
                if request.id in self._counted:
                    self._deliveries.take_back(request.id)
        except UNREACHABLE as error:
            logger.info("Counts of deliveries could not be taken back: %s", error)

    def _examine(self, request: Any, at_most: int) -> None:
        if any(other.id == request.id and other is not request for other in copied(state.active_requests)):
            logger.info("Task %s is at work here already; its second delivery waits for the result", request.id)
            self._leave(request)
            return
        if self._stored(request) in _OVER:
            logger.info("Task %s was answered before its worker could acknowledge it", request.id)
            self.outcomes.answered_before += 1
            self._finish(request)
            return
        delivery = self._deliveries.begin(request.id, at_most)
        if not delivery and at_most >= self._settings.max_deliveries:
            self._bury(request)
            return
        if not delivery:
            # Another wire put it back, which does not count how often: now it comes in smaller company.
            logger.info("Task %s was begun too often to run beside others; it comes again, to run alone", request.id)
            request.message.channel.records.overdue(request.message.delivery_tag)
            self._leave(request)
            return
        logger.warning(
            "Task %s was delivered before, and its worker ended: it runs apart, delivery %d, LAYA_MAX_DELIVERIES %d",
            request.id,
            delivery,
            self._settings.max_deliveries,
        )
        self.outcomes.repeated += 1
        self._counted.add(request.id)
        self._forget_when_settled(request)
        try:
            self._start(request)
        except RuntimeError:  # the pool was closed: the worker ends, and the message goes back
            self._deliveries.forget(request.id)
            raise

    def _stored(self, request: Any) -> str | None:
        """The state in the result store. One that cannot be read is none: the work is repeated."""
        try:
            stored: str = request.task.backend.get_task_meta(request.id, cache=False)["status"]
        except Exception as error:  # noqa: BLE001 - whatever it is, a repeated answer harms nobody
            logger.warning("The result of task %s cannot be read: %s", request.id, type(error).__name__)
            return None
        return stored

    def _forget_when_settled(self, request: Any) -> None:
        """Forget the count when the message is acknowledged, or given back by its own task."""

        def then_forget(settle: Callable[..., Any]) -> Callable[..., Any]:
            def settled(*args: Any) -> Any:
                self._counted.discard(request.id)
                try:
                    self._deliveries.forget(request.id)
                except UNREACHABLE as error:
                    logger.info("The count of task %s stays until it expires: %s", request.id, error)
                return settle(*args)

            return settled

        request._on_ack, request._on_reject = then_forget(request.on_ack), then_forget(request.on_reject)

    def _finish(self, request: Any) -> None:
        state.task_ready(request, successful=True)
        request.acknowledge()
        request.send_event("task-succeeded", result="answered before", runtime=0.0)

    def _bury(self, request: Any) -> None:
        """Dead-letter a message, then answer its caller, then acknowledge it: in this order nothing is lost."""
        begun = self._settings.max_deliveries
        letter = letter_of(request.message, "poisoned", f"begun {begun} times, and never finished", begun)
        settings = self._settings
        self._letters.add(letter, request.message._raw, keep=settings.dead_max, seconds=settings.dead_ttl)
        error = poisoned(letter)
        logger.error("Task %s is dead-lettered: %s", request.id, error)
        self.outcomes.poisoned += 1
        request.task.backend.mark_as_failure(
            request.id, error, request=request._context, store_result=request.store_errors
        )
        state.task_ready(request)
        request.acknowledge()
        request.send_event("task-failed", exception=repr(error), traceback="")

    def _leave(self, request: Any) -> None:
        """Give its place to another, and leave its record to the visibility timeout."""
        state.task_ready(request)
        let_go = getattr(request.message.channel.qos, "let_go", None)
        if let_go is not None:
            let_go(request.message.delivery_tag)


class RedeliveryStep(bootsteps.Step):  # type: ignore[misc] # celery has no types
    """Puts the quarantine between the consumer and the pool, before the consumer is made."""

    requires = ("celery.worker.components:Pool", "celery.worker.components:Timer")

    def create(self, parent: Any) -> None:
        """Take over what the consumer hands messages to."""
        start = parent.process_task
        redelivery = Redelivery(parent.app, parent.app.settings, start)

        def examine(request: Any, at_most: int, done: Callable[[], None]) -> None:
            def examined() -> None:
                try:
                    redelivery.examine(request, at_most)
                finally:
                    done()

            parent.pool.apply_async(examined, callback=lambda _: None)

        most, width = parent.app.settings.max_deliveries, int(parent.concurrency or 1)
        parent.quarantine = Quarantine(start, examine, parent.timer, most, width)
        parent.redelivery = redelivery
        parent.process_task = parent.quarantine.process
