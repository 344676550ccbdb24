"""The demo's course: two workers on this machine, tickets sent to them, answers collected, a fallen worker replaced.

Says what happens through two callables and returns plain data; how it looks is `worker.cli.demo`'s. Uses only what a
backend has, the tasks and Celery's own events and control commands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celery import Celery
from celery.result import AsyncResult

from producer.errors import LayaError
from worker.fleet import LocalFleet, answering
from worker.interrupts import Interrupts
from worker.taskwatch import Finish, TaskWatch
from worker.tickets import Ticket

WORKERS = ("one", "two")
THREADS = 4
"""Pool threads a worker: enough to show work in parallel, few enough for a laptop."""

VISIBILITY_SECONDS = 10
"""What a worker had taken when it died comes back to the queue after this time, instead of the two minutes of a
deployment: somebody is watching."""

READY_SECONDS = 120.0
ANSWER_SECONDS = 300.0
SWEEP_SECONDS = 1.0
"""How often the results are asked for although no event announced them."""

EVENT_SECONDS = 3.0
"""How long the last answers' events are waited for, once the answers are there."""

RESTARTS = 3
"""Times that one worker is started again before the demo goes on without it."""

SETTINGS = {
    "LAYA_VISIBILITY_TIMEOUT": str(VISIBILITY_SECONDS),
    # Two workers on one machine: one computing thread each is faster than both fighting for all cores.
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class DemoFailed(Exception):
    """The demo cannot go on; the message says why, with the end of a worker's log where that helps."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One ticket's answer: a result or an error, and which worker gave it in how many seconds, where that is known."""

    ticket: Ticket
    result: Mapping[str, Any] | None
    error: str | None
    worker: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """What one worker did in the demo: answers given, checkpoints loaded (with repeats), resident at the end."""

    name: str
    answers: int
    loads: int | None
    resident: tuple[str, ...]


def first_loads(checkpoints: Sequence[str], workers: int) -> list[str]:
    """Which checkpoint each worker loads at its start: dealt out in turn, again from the first where they are fewer."""
    return [checkpoints[number % len(checkpoints)] for number in range(workers)]


class Demo:
    """One run on a fleet that is already started."""

    def __init__(
        self,
        fleet: LocalFleet,
        app: Celery,
        interrupts: Interrupts,
        *,
        tell: Callable[[str], None],
        on_reply: Callable[[], None],
    ) -> None:
        """Take the fleet, an app for its broker, and how to tell about events and answers."""
        self._fleet = fleet
        self._app = app
        self._interrupts = interrupts
        self._tell = tell
        self._on_reply = on_reply
        self._restarts = dict.fromkeys(WORKERS, 0)
        self._replies: dict[str, Reply] = {}
        self._finishes: dict[str, Finish] = {}

    def start_workers(self, checkpoints: Sequence[str]) -> None:
        """Start both workers, each with a checkpoint of its own, and wait until they take requests.

        Each may serve all: what neither has loaded goes where there is room.

        Raises:
            DemoFailed: one ended, or did not answer in time.
        """
        # What is preloaded stays, so that a third checkpoint needs a place of its own.
        places = "1" if len(checkpoints) <= len(WORKERS) else "2"
        options = ["--pool", "threads", "--concurrency", str(THREADS)]
        for name, first in zip(WORKERS, first_loads(checkpoints, len(WORKERS)), strict=True):
            self._fleet.start_worker(name, options=options, LAYA_PRELOAD=first, LAYA_MAX_LOADED=places)
        deadline = time.monotonic() + READY_SECONDS
        waiting = set(WORKERS)
        while waiting:
            for member in self._fleet.members:
                if member.end is not None:
                    raise DemoFailed(f"worker {member.name} {member.end} at its start:\n{member.log_end}")
            if time.monotonic() > deadline:
                names = " and ".join(sorted(waiting))
                raise DemoFailed(f"worker {names} did not get ready in {READY_SECONDS:.0f} s")
            self._interrupts.wait(0.1)
            waiting -= answering(self._app)

    def run(self, tickets: Iterable[Ticket], submit: Callable[[Ticket], AsyncResult[Any]]) -> None:
        """Send all tickets, then collect their answers into `replies` as they come.

        Raises:
            DemoFailed: not all were answered in time, or no worker is left.
        """
        with TaskWatch(self._app) as watch:
            pending = {}
            for ticket in tickets:
                self._interrupts.check()
                sent = submit(ticket)
                pending[str(sent.id)] = (ticket, sent)
            self._collect(pending, watch)
            self._wait_for_events(watch)

    @property
    def replies(self) -> list[Reply]:
        """The answers so far, with the worker of each where its event has come."""
        replies = []
        for task, reply in self._replies.items():
            finish = self._finishes.get(task)
            replies.append(reply if finish is None else replace(reply, worker=finish.worker, seconds=finish.seconds))
        return replies

    def summaries(self) -> list[WorkerSummary]:
        """What each worker did, asked of the workers themselves."""
        said = self._app.control.broadcast("resident", reply=True, timeout=2.0) or []
        by_name = {node.partition("@")[0]: facts for answer in said for node, facts in answer.items()}
        replies = self.replies
        summaries = []
        for name in WORKERS:
            facts = by_name.get(name)
            answers = sum(reply.worker == name for reply in replies)
            loads = None if facts is None else sum(facts["loads"].values())
            resident = () if facts is None else tuple(facts["resident"])
            summaries.append(WorkerSummary(name, answers, loads, resident))
        return summaries

    def _collect(self, pending: dict[str, tuple[Ticket, AsyncResult[Any]]], watch: TaskWatch) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS
        next_sweep = time.monotonic() + SWEEP_SECONDS
        while pending:
            self._interrupts.check()
            finish = watch.next(timeout=0.1)
            if finish is not None:
                self._finishes[finish.task] = finish
                self._take(finish.task, pending)
            if time.monotonic() > next_sweep:
                self._revive()
                for task in list(pending):
                    self._take(task, pending)
                next_sweep = time.monotonic() + SWEEP_SECONDS
            if time.monotonic() > deadline:
                raise DemoFailed(f"{len(pending)} tickets had no answer after {ANSWER_SECONDS:.0f} s")

    def _take(self, task: str, pending: dict[str, tuple[Ticket, AsyncResult[Any]]]) -> None:
        """Move a task from `pending` to `replies`, if its result is there."""
        if task not in pending or not pending[task][1].ready():
            return
        ticket, sent = pending.pop(task)
        try:
            reply = Reply(ticket, sent.get(timeout=5), None)
        except LayaError as error:
            reply = Reply(ticket, None, f"{type(error).__name__}: {error.message}")
        sent.forget()
        self._replies[task] = reply
        self._on_reply()

    def _wait_for_events(self, watch: TaskWatch) -> None:
        """Events come a moment after the results; some may never come."""
        deadline = time.monotonic() + EVENT_SECONDS
        while self._replies.keys() - self._finishes.keys() and time.monotonic() < deadline:
            self._interrupts.check()
            finish = watch.next(timeout=0.1)
            if finish is not None:
                self._finishes[finish.task] = finish

    def _revive(self) -> None:
        """Start a fallen worker again, or go on without it."""
        fallen = [member for member in self._fleet.members if member.end is not None]
        for member in fallen:
            if self._restarts[member.name] < RESTARTS:
                self._restarts[member.name] += 1
                self._tell(
                    f"worker {member.name} {member.end}: starting it again. "
                    f"What it had taken returns to the queue within {VISIBILITY_SECONDS} s or so."
                )
                self._fleet.restart(member)
            elif len(fallen) == len(WORKERS):
                raise DemoFailed(f"no worker is left; worker {member.name} {member.end}:\n{member.log_end}")
