"""Workers that die, of poison or from outside, in any order of events: who is convicted, and what that may cost.

The quarantine is the real one, one for each worker; queue, counts and pool are a model, in which whatever can happen
next is chosen by hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from producer.transport_message import OVERDUE
from producer.transport_records import QoS
from worker import quarantine
from worker.quarantine import Quarantine
from worker.suspects import is_suspect


@dataclass(eq=False)
class Request:
    """As much of Celery's request as the quarantine looks at."""

    id: int
    message: Any
    returns: int

    @property
    def delivery_info(self) -> dict[str, Any]:
        return {"redelivered": self.returns > 0}

    @property
    def request_dict(self) -> dict[str, Any]:
        return {OVERDUE: self.returns}


@dataclass(eq=False)
class Channel:
    """A worker's channel on our wire."""

    qos: Any
    records: Any


@dataclass(eq=False)
class Worker:
    """One process: its quarantine, what it works on, and calls that are still to come."""

    world: World
    state: Any = field(default_factory=lambda: SimpleNamespace(reserved_requests=set(), active_requests=set()))
    later: list[Callable[[], None]] = field(default_factory=list)
    records: dict[int, Request] = field(default_factory=dict)
    running: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state.task_ready = self.state.reserved_requests.discard
        qos = QoS.__new__(QoS)
        qos.let_go = lambda tag: None  # type: ignore[method-assign]
        self.channel = Channel(qos, SimpleNamespace(put_back=self._put_back))
        timer = SimpleNamespace(call_after=lambda _, callback: self.later.append(callback))
        self.quarantine = Quarantine(self.running.append, self._examine, timer, self.world.most, self.world.width)

    def take(self, at_most: int) -> None:
        world = self.world
        room = min(at_most, self.quarantine.room(world.width - len(self.state.reserved_requests)))
        taken, world.queue = world.queue[: max(0, room)], world.queue[max(0, room) :]
        for name in taken:
            request = Request(name, SimpleNamespace(channel=self.channel, delivery_tag=name), world.returns[name])
            self.records[name] = request
            self.state.reserved_requests.add(request)
            self.quarantine.process(request)

    def turn(self) -> None:
        """Let the first of the calls come that are due."""
        if self.later:
            self.later.pop(0)()

    def finish(self, request: Request) -> None:
        if request.id in self.world.poison:
            self.world.died(self, request.id)
            return
        self.running.remove(request)
        self._settle(request, self.world.answered)

    def _examine(self, request: Request, at_most: int, done: Callable[[], None]) -> None:
        def examined() -> None:
            world = self.world
            begun = 1 + world.counts[request.id]  # as the script BEGIN has it
            if begun < at_most:
                world.counts[request.id] = begun
                self.running.append(request)
            else:
                assert at_most == world.most  # counts never run ahead of returns here
                self._settle(request, world.buried)
            done()

        self.later.append(examined)

    def _settle(self, request: Request, among: list[int]) -> None:
        self.state.reserved_requests.discard(request)
        among.append(self.records.pop(request.id).id)

    def _put_back(self, tags: list[int], *, last: bool) -> None:
        self.world.put_back([self.records.pop(tag).id for tag in tags], last=last)


class World:
    """Workers, a queue, and what became of each message."""

    def __init__(self, messages: int, poison: set[int], workers: int, width: int, most: int) -> None:
        self.poison, self.width, self.most = poison, width, most
        self.queue = list(range(messages))
        self.returns, self.counts = [0] * messages, [0] * messages
        self.answered: list[int] = []
        self.buried: list[int] = []
        self.deaths: list[int | None] = []  # what each was of
        self.died_alone = [False] * messages  # the last time
        self.workers = [Worker(self) for _ in range(workers)]

    def put_back(self, tags: list[int], *, last: bool) -> None:
        self.queue = [*self.queue, *tags] if last else [*tags, *self.queue]

    def overdue(self, requests: list[Request]) -> None:
        for request in requests:
            self.returns[request.id] += 1
        self.put_back([request.id for request in requests], last=False)

    def died(self, worker: Worker, of: int | None) -> None:
        self.deaths.append(of)
        suspects = [is_suspect(request.delivery_info, request.request_dict) for request in worker.running]
        assert all(suspects) or not any(suspects)  # nobody dies beside a suspect for the first time
        for request in worker.running:
            self.died_alone[request.id] = len(worker.running) == 1
        self.overdue(list(worker.records.values()))
        self.workers[self.workers.index(worker)] = Worker(self)

    def step(self, choice: int) -> None:
        """One event, chosen by a number."""
        worker = self.workers[choice % len(self.workers)]
        with _in_the_process_of(worker):
            kind, choice = choice // len(self.workers) % 3, choice // len(self.workers) // 3
            if kind == 0:
                worker.take(1 + choice % self.width)
            elif kind == 1 or not worker.running:
                worker.turn()
            else:
                worker.finish(worker.running[choice % len(worker.running)])

    def finish(self) -> None:
        """Go on until everything is settled; steps are bounded, so that a standstill is seen."""
        messages = len(self.returns)
        for turn in range(20 * (messages + 4) * self.most * len(self.workers)):
            if len(self.answered) + len(self.buried) == messages:
                return
            for kind in (0, 1, 2):
                self.step(turn % len(self.workers) + len(self.workers) * (kind + 3 * (self.width - 1)))
        raise AssertionError(f"{messages - len(self.answered) - len(self.buried)} messages are never settled")


@contextmanager
def _in_the_process_of(worker: Worker) -> Iterator[None]:
    with (
        mock.patch.object(quarantine, "state", worker.state),
        mock.patch.object(quarantine, "monotonic", return_value=0.0),
    ):
        yield


@st.composite
def worlds(draw: st.DrawFn) -> World:
    messages = draw(st.integers(1, 24))
    poison = draw(st.sets(st.integers(0, messages - 1), max_size=3))
    return World(messages, poison, draw(st.integers(1, 3)), draw(st.integers(1, 12)), draw(st.integers(2, 5)))


CHOICES = st.lists(st.integers(0, 1000), max_size=120)


@settings(max_examples=120, deadline=None)
@given(worlds(), CHOICES)
def test_poison_is_convicted_after_so_many_deaths_and_all_others_are_answered(world: World, choices: list[int]) -> None:
    for choice in choices:
        world.step(choice)
    world.finish()
    assert sorted(world.buried) == sorted(world.poison)
    assert sorted(world.answered) == [one for one in range(len(world.returns)) if one not in world.poison]
    assert all(world.deaths.count(one) <= world.most for one in world.poison)
    assert len(world.deaths) == sum(world.deaths.count(one) for one in world.poison)


@settings(max_examples=120, deadline=None)
@given(worlds(), CHOICES, st.sets(st.integers(0, 120), max_size=6))
def test_with_kills_from_outside_nobody_is_convicted_who_did_not_die_alone(
    world: World, choices: list[int], kills: set[int]
) -> None:
    for moment, choice in enumerate(choices):
        world.step(choice)
        if moment in kills:
            world.died(world.workers[choice % len(world.workers)], None)
    world.finish()
    assert sorted(world.answered + world.buried) == list(range(len(world.returns)))
    assert world.poison <= set(world.buried)
    assert all(world.died_alone[one] for one in world.buried)
    assert all(world.deaths.count(one) <= world.most for one in world.poison)
