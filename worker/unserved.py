"""Answers what was sent to a queue that no worker reads: a backend knows a checkpoint that nobody serves.

The queue's wire remembers which queues were declared (`laya.queues`), workers what they serve (`laya.served`). A queue
that no live worker serves, nor has lately, and whose oldest message has waited for some seconds, is emptied by the
worker that claims it: each caller gets the error that says so.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Collection, Sequence
from typing import Any, Final

from celery import bootsteps, signals
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from producer.checkpoints import QUEUE_PREFIX, queue_of
from producer.errors import UnknownCheckpoint
from producer.transport_channel import QUEUES_KEY
from worker.announcements import Fleet, read
from worker.dead import task_id_of

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 20.0
"""Seconds between two looks at which queues there are, at most: a look takes a connection and some commands."""

RESTART_S: Final = 600.0
"""Seconds after a worker that served a checkpoint was last heard of before its messages wait for nobody: a worker that
is started again may have much to load first."""

SERVED_KEY: Final = "laya.served"
"""Sorted set of checkpoints by when a worker last served them (server's clock); of all namespaces, as queues are."""

CLAIM_MS: Final = 30_000
"""Milliseconds after which another worker may go on where one has died that was answering."""

AT_A_TIME: Final = 200
"""Messages that are answered in one look."""


def unserved(fleet: Fleet, served_lately: Collection[str], after: float) -> list[str]:
    """Checkpoints whose messages wait for nobody: no worker serves them or did lately, and the oldest has waited for
    `after` seconds."""
    served = {name for worker in fleet.workers for name in worker.serves}.union(served_lately)
    return [queue.checkpoint for queue in fleet.queues if queue.checkpoint not in served and queue.age > after]


class Unserved:
    """Looks every few seconds, in a thread."""

    def __init__(self, app: Any) -> None:
        """Look at the broker of the app."""
        self._app = app
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="laya-unserved", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the look at hand."""
        self._stop.set()

    def _run(self) -> None:
        # At random, so that workers that were started together do not look together.
        every = min(LOOK_EVERY_S, self._app.settings.unserved_after)
        while not self._stop.wait(every * random.uniform(0.8, 1.2)):  # noqa: S311 - no secret
            try:
                self._look()
            except (OperationalError, RedisError, OSError) as error:
                logger.debug("Could not look for queues that nobody serves: %s", error)
            except Exception:
                logger.exception("Looking for queues that nobody serves failed")

    def _look(self) -> None:
        settings = self._app.settings
        with self._app.connection_for_write() as connection:
            channel = connection.default_channel
            client = channel.client
            known = {queue_of(name) for name in settings.names} | {QUEUE_PREFIX}
            served_lately = self._note_own(client)
            names = [_text(name) for name in client.zrange(QUEUES_KEY, 0, -1)]
            strange = [name.removeprefix(f"{QUEUE_PREFIX}.") for name in names if name not in known]
            if not strange:
                return
            fleet = read(client, settings.namespace, strange)
            for checkpoint in unserved(fleet, served_lately, settings.unserved_after):
                claim = f"{settings.namespace}.unserved.{checkpoint}"
                if client.set(claim, "1", nx=True, px=CLAIM_MS):
                    served = sorted({name for worker in fleet.workers for name in worker.serves})
                    self._answer(channel, checkpoint, served)
                    client.delete(claim)

    def _note_own(self, client: Any) -> list[str]:
        """Note what this worker serves; the checkpoints that some worker has served lately."""
        now = client.time()[0]
        consumed = self._app.amqp.queues.consume_from
        own = [name for name in self._app.settings.names if queue_of(name) in consumed]
        with client.pipeline(transaction=False) as pipe:
            if own:
                pipe.zadd(SERVED_KEY, dict.fromkeys(own, now))
            pipe.zremrangebyscore(SERVED_KEY, "-inf", now - RESTART_S)
            pipe.zrange(SERVED_KEY, 0, -1)
            *_, lately = pipe.execute()
        return [_text(name) for name in lately]

    def _answer(self, channel: Any, checkpoint: str, served: Sequence[str]) -> None:
        """Answer what waits in the queue of a checkpoint; the error first, then the acknowledgement."""
        answered = 0
        while answered < AT_A_TIME and not self._stop.is_set():
            message = channel.basic_get(queue_of(checkpoint))
            if message is None:
                break
            error = UnknownCheckpoint(
                f"no worker serves the checkpoint {checkpoint!r}; those that are served are {', '.join(served)}. "
                "Add it to LAYA_CHECKPOINTS on the workers, or ask for another",
                {"checkpoint": checkpoint, "known": list(served)},
            )
            if (task_id := task_id_of(message)) is not None:
                self._app.backend.mark_as_failure(task_id, error)
            message.ack()
            answered += 1
        if answered:
            logger.error(
                "No worker serves %r: %d messages of its queue were answered with the error", checkpoint, answered
            )


class UnservedStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Looks for as long as the worker takes messages."""

    requires = ("worker.placement_step:PlacementStep",)

    def include_if(self, parent: Any) -> bool:
        """Unless such messages are to wait for as long as it takes."""
        return bool(parent.app.settings.unserved_after)

    def start(self, parent: Any) -> None:
        """Begin to look."""
        looking = Unserved(parent.app)
        signals.worker_shutting_down.connect(lambda **_: looking.stop(), weak=False)
        looking.start()


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
