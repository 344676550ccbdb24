"""What becomes of a message whose task ends as no task should: by an error outside its own code.

Celery runs a task in a thread of the pool, and learns of its end by a call. When something else fails (the result
cannot be stored, memory runs out while a result is written down), that call never comes: the message keeps its place in
the worker for good, and the worker takes one less. Here every end is seen.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from celery.utils.log import get_logger
from celery.worker.state import task_ready

from producer.tasks import PredictionTask
from worker.messages import PredictionMessage
from worker.storing import ResultNotStored

logger = get_logger(__name__)


class SettledMessage(PredictionMessage):
    """A message that gives its place back however its task ends."""

    def execute_using_pool(self, pool: Any, **options: Any) -> Any:
        """Hand the task to the pool, and watch how it ends."""
        result = super().execute_using_pool(pool, **options)
        future = getattr(result, "f", None)  # the solo pool has none: there the error is raised here
        if future is not None:
            future.add_done_callback(self._ended)
        return result

    def maybe_expire(self) -> bool | None:
        """Leave it to the task whether its time is up: its thread may wait for the result store, Celery's loop not."""
        return None if isinstance(self.task, PredictionTask) else super().maybe_expire()

    def _ended(self, future: Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is None:
            return
        task_ready(self)
        if self.acknowledged:
            return
        if isinstance(error, ResultNotStored) and error.requeue:
            logger.error("Task %s is put back on its queue: %s", self.id, error.reason)
            self.reject(requeue=True)
            return
        logger.error("Task %s has not ended in order and will be delivered again", self.id, exc_info=error)
        qos = self.message.channel.qos
        if hasattr(qos, "let_go"):
            qos.let_go(self.message.delivery_tag)
