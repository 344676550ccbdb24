"""`laya-workers status`: which workers answer, what each holds in memory, and how many requests wait for what."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from kombu.exceptions import ChannelError
from rich.text import Text

from producer.app import PredictionApp, app
from producer.checkpoints import queue_of
from worker.cli.screen import Code, CommandError, out, plain_table


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker that answered: its node name, checkpoints in memory, checkpoints loaded since its start."""

    node: str
    resident: tuple[str, ...]
    loads: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One checkpoint's queue: how many requests wait in it, those that a worker has taken not counted."""

    checkpoint: str
    waiting: int


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long workers have to answer.")] = 1.0,
) -> None:
    """Show the workers that answer, what they hold in memory, and the queues. Fails if no worker answers."""
    queues = queues_of(app, app.settings.names)
    workers = workers_of(app, timeout)
    if as_json:
        facts = {"workers": [asdict(one) for one in workers], "queues": [asdict(one) for one in queues]}
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(workers, queues)
    if not workers:
        raise CommandError(f"no worker answered within {timeout:g} s", Code.UNREACHABLE)


def workers_of(on: PredictionApp, timeout: float) -> list[WorkerStatus]:
    """The workers that answer within `timeout` seconds, by name."""
    answers: list[dict[str, Any]] = on.control.broadcast("resident", reply=True, timeout=timeout) or []
    found = [
        WorkerStatus(node, tuple(facts["resident"]), sum(facts["loads"].values()))
        for answer in answers
        for node, facts in answer.items()
    ]
    return sorted(found, key=lambda one: one.node)


def queues_of(on: PredictionApp, checkpoints: Iterable[str]) -> list[QueueStatus]:
    """The queue of each registered checkpoint."""
    found = []
    with on.connection_for_read() as connection:
        for checkpoint in checkpoints:
            try:
                declared = connection.default_channel.queue_declare(queue=queue_of(checkpoint), passive=True)
                waiting = int(declared.message_count)
            except ChannelError:
                waiting = 0  # nothing was ever sent there
            found.append(QueueStatus(checkpoint, waiting))
    return found


def show(workers: list[WorkerStatus], queues: list[QueueStatus]) -> None:
    """Two small tables."""
    if workers:
        table = plain_table("worker", "resident", "loads")
        for worker in workers:
            table.add_row(Text(worker.node), Text(", ".join(worker.resident) or "-"), str(worker.loads))
        out.print(table)
        out.print()
    table = plain_table("queue", "waiting")
    for queue in queues:
        table.add_row(Text(queue_of(queue.checkpoint)), str(queue.waiting))
    out.print(table)


def register(to: typer.Typer) -> None:
    """Add the command."""
    to.command(
        short_help="Workers, what each holds in memory, what waits.",
        epilog="Example: LAYA_BROKER_URL=redis://10.0.0.5:6379/0 laya-workers status",
    )(status)
