"""How often a message was begun by workers that did not finish it, counted by the task's id on the broker's server.

A count is made before the work begins, so that it is there when the worker dies of it. What follows from a count is
decided in `worker.redelivery` and `worker.single`.
"""

from __future__ import annotations

from typing import Final

from producer.app import PredictionApp
from worker.broker_scripts import BEGIN, BEGIN_ONE, FINISH_ONE, FORGET, TAKE_BACK, channel_of, run

COUNT_S: Final = 86_400
"""Seconds for which a count of deliveries is kept: longer than a message waits between two of them."""


class Deliveries:
    """The counts of a deployment. Every method raises one of `broker_scripts.UNREACHABLE` where the server is away."""

    def __init__(self, app: PredictionApp) -> None:
        """Those on the app's broker, in its namespace."""
        self._app = app

    def begin(self, task_id: str, at_most: int) -> int:
        """Count that a message which was delivered before is begun; the number of this delivery.

        Returns 0, and counts nothing, where workers have begun it `at_most` times already.
        """
        with channel_of(self._app) as channel:
            return int(run(channel, BEGIN, self._keys(task_id), at_most, COUNT_S))

    def forget(self, task_id: str) -> None:
        """Forget how often a message was begun: it was answered, or given back."""
        with channel_of(self._app) as channel:
            run(channel, FORGET, self._keys(task_id))

    def take_back(self, task_id: str) -> None:
        """Count once less: its worker put the message back before it ended, so it did not die of it."""
        with channel_of(self._app) as channel:
            run(channel, TAKE_BACK, self._keys(task_id)[:1])

    def begin_one(self, task_id: str, place: int, at_most: int) -> bool:
        """Count that one request of such a message is begun alone; False where it has been begun often enough."""
        with channel_of(self._app) as channel:
            return bool(run(channel, BEGIN_ONE, self._keys(task_id)[1:], place, at_most, COUNT_S))

    def finish_one(self, task_id: str, place: int) -> None:
        """Take the count of one request back: it was answered, so it kills nobody."""
        with channel_of(self._app) as channel:
            run(channel, FINISH_ONE, self._keys(task_id)[1:], place)

    def _keys(self, task_id: str) -> list[str]:
        """The message's count, and that of each request in it."""
        count = f"{self._app.settings.namespace}.delivered.{task_id}"
        return [count, f"{count}.requests"]
