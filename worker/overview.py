"""A deployment at one moment: the workers that answer, the queues, and what both say together.

Asks over Celery's remote control, and reads what workers announce and what waits; prints nothing. `laya-workers status`
shows it, `load`, `unload` and `submit` look things up in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from producer.app import PredictionApp
from worker import announcements
from worker.inspection import Holdings


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker that answered: its node name, and what it said."""

    node: str
    holdings: Holdings

    @property
    def rate(self) -> float:
        """Answers a second."""
        return sum(self.holdings["rates"].values())


@dataclass(frozen=True, slots=True)
class SilentWorker:
    """One worker that announces what it does but did not answer: what it announced last, a few seconds ago at most."""

    node: str
    holds: tuple[str, ...]
    loading: tuple[str, ...]
    serves: tuple[str, ...]
    rates: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class QueueView:
    """One checkpoint's queue.

    Attributes:
        checkpoint: whose requests it holds.
        waiting: messages in it; those that a worker has taken are not counted.
        oldest: seconds that the oldest of them has waited; None where that is not known.
        held_by: nodes that have the checkpoint in memory.
        served_by: nodes that read the queue, now or when they fetch the checkpoint.
        loading_on: nodes that are loading it.
        rate: answers a second, of all workers.
    """

    checkpoint: str
    waiting: int
    oldest: float | None
    held_by: tuple[str, ...]
    served_by: tuple[str, ...]
    loading_on: tuple[str, ...]
    rate: float


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything at one moment, in Unix time; workers and silent ones by name."""

    at: float
    workers: tuple[WorkerView, ...]
    silent: tuple[SilentWorker, ...]
    queues: tuple[QueueView, ...]

    @property
    def in_flight(self) -> int:
        """Messages that are being worked on."""
        return sum(worker.holdings["in_flight"] for worker in self.workers)

    @property
    def waiting(self) -> int:
        """Messages that wait in the queues."""
        return sum(queue.waiting for queue in self.queues)

    @property
    def rate(self) -> float:
        """Answers a second."""
        return sum(queue.rate for queue in self.queues)


def overview(on: PredictionApp, timeout: float) -> Overview:
    """Ask the workers, and look at the queue of each checkpoint that is registered here or served by one of them.

    Raises:
        OperationalError, RedisError: the server does not answer.
    """
    with on.connection_for_read() as connection:
        client = connection.default_channel.client
        announced = announcements.read(client, on.settings.namespace, on.settings.names)
        entries = _by_node(announced.workers)
        workers = workers_of(on, timeout, expected=list(entries))
        served = {name for each in workers for name in each.holdings["serves"]}
        more = sorted(served - set(on.settings.names))
        found = (*announced.queues, *announcements.read(client, on.settings.namespace, more).queues)
    answered = {worker.node for worker in workers}
    silent = [
        SilentWorker(node, tuple(entry.holds), tuple(entry.loading), entry.serves, entry.rates)
        for node, entry in sorted(entries.items())
        if node not in answered
    ]
    queues = [queue_view(queue, workers, silent) for queue in found]
    return Overview(time.time(), tuple(workers), tuple(silent), tuple(queues))


def all_workers(on: PredictionApp, timeout: float) -> list[WorkerView]:
    """Every worker that answers, by name; waits no longer than until all have that announce themselves."""
    with on.connection_for_read() as connection:
        announced = announcements.read(connection.default_channel.client, on.settings.namespace, ())
    return workers_of(on, timeout, expected=list(_by_node(announced.workers)))


def workers_of(
    on: PredictionApp, timeout: float, destination: Sequence[str] | None = None, expected: Sequence[str] = ()
) -> list[WorkerView]:
    """The workers that answer, by name.

    Args:
        on: the app of the deployment.
        timeout: seconds that they have.
        destination: nodes to ask; None asks all.
        expected: nodes that are known to be there: once so many have answered, nobody else is waited for.
    """
    answers = ask_all(on, "resident", {}, timeout, destination, limit=len(expected) or None)
    missing = [node for node in expected if node not in answers]
    if missing:  # perhaps a late answer to an earlier question was counted instead
        answers |= ask_all(on, "resident", {}, timeout, missing)
    found = [WorkerView(node, cast("Holdings", said)) for node, said in answers.items() if "serves" in said]
    return sorted(found, key=lambda each: each.node)


def _by_node(entries: Iterable[announcements.WorkerEntry]) -> dict[str, announcements.WorkerEntry]:
    """The entries by node name; where a worker has just been started again, the younger."""
    return {entry.node: entry for entry in sorted(entries, key=lambda entry: entry.started)}


def queue_view(
    queue: announcements.QueueEntry, workers: Sequence[WorkerView], silent: Sequence[SilentWorker]
) -> QueueView:
    """A queue, and what each worker has to do with it."""
    name = queue.checkpoint
    held = [each.node for each in workers if name in each.holdings["resident"]]
    loading = [each.node for each in workers if name in each.holdings["loading"]]
    served = [each.node for each in workers if name in each.holdings["serves"]]
    return QueueView(
        name,
        queue.depth,
        queue.age if queue.depth else None,
        held_by=(*held, *(each.node for each in silent if name in each.holds)),
        served_by=(*served, *(each.node for each in silent if name in each.serves)),
        loading_on=(*loading, *(each.node for each in silent if name in each.loading)),
        rate=sum(each.holdings["rates"].get(name, 0.0) for each in workers)
        + sum(each.rates.get(name, 0.0) for each in silent),
    )


def ask_all(
    on: PredictionApp,
    command: str,
    arguments: Mapping[str, Any],
    timeout: float,
    destination: Sequence[str] | None = None,
    limit: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Every worker's answer to a control command, by node.

    With a destination or a limit no longer than until so many have answered, else until none has for `timeout` seconds.
    """
    answers = on.control.broadcast(
        command,
        arguments=dict(arguments),
        destination=None if destination is None else list(destination),
        reply=True,
        timeout=timeout,
        limit=limit,
    )
    return {node: answer for each in answers or [] for node, answer in each.items()}


def named(workers: Iterable[str], wanted: str) -> list[str]:
    """The nodes that somebody means: by the whole name, by the part before the @, or by the host after it."""
    nodes = list(workers)
    exact = [node for node in nodes if node == wanted]
    return exact or [node for node in nodes if wanted in node.split("@", 1)]
