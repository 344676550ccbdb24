"""Who runs beside whom: a suspect alone, and what arrives meanwhile goes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from producer.transport_message import RETURNED
from producer.transport_records import QoS
from worker import quarantine
from worker.quarantine import Quarantine, is_suspect, verdict


@pytest.mark.parametrize(("suspect", "neighbours", "alone", "waiting"), [*product([0, 1], [0, 1, 9], [0, 1], [0, 1])])
def test_nothing_ever_runs_beside_a_suspect(suspect: bool, neighbours: int, alone: bool, waiting: bool) -> None:
    decided = verdict(suspect=suspect, neighbours=neighbours, alone=alone, waiting=waiting)
    if alone:
        assert decided == "back"
    elif suspect:
        assert decided != "start"
        assert (decided == "alone") == (neighbours == 0 and not waiting)
    else:
        assert decided == "start"


@dataclass(eq=False)
class Channel:
    """A consumer's channel on our wire."""

    qos: QoS
    records: Any


@dataclass(eq=False)
class Message:
    """What a consumer has of a message: its channel and its tag."""

    channel: Any
    delivery_tag: str


@dataclass(eq=False)
class Request:
    """As much of Celery's request as the quarantine looks at."""

    message: Message
    delivery_info: dict[str, Any]
    request_dict: dict[str, Any] = field(default_factory=dict)
    id: str = ""


class Scene:
    """A quarantine with a channel that notes what it is given back, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.examined: list[tuple[Any, Callable[[], None]]] = []
        self.returned: list[tuple[list[str], bool]] = []
        self.later: list[Callable[[], None]] = []
        self.now = 0.0
        qos = QoS.__new__(QoS)
        qos.let_go = lambda tag: None  # type: ignore[method-assign]
        records = SimpleNamespace(put_back=lambda tags, last: self.returned.append((tags, last)))
        self.channel = Channel(qos, records)
        timer = SimpleNamespace(call_after=lambda _, callback: self.later.append(callback))
        self.quarantine = Quarantine(self.started.append, lambda *both: self.examined.append(both), timer)

    def arrives(self, name: str, *, suspect: bool = False) -> Request:
        request = Request(Message(self.channel, name), {"redelivered": suspect}, id=name)
        state.task_reserved(request)
        self.quarantine.process(request)
        return request

    def ends(self, request: Request) -> None:
        state.task_ready(request)

    def look(self) -> None:
        """Let the timer's calls come."""
        later, self.later = self.later, []
        for callback in later:
            callback()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene()
    monkeypatch.setattr(quarantine, "monotonic", lambda: made.now)
    yield made
    state.reset_state()


def test_first_deliveries_start_side_by_side(scene: Scene) -> None:
    requests = [scene.arrives(str(number)) for number in range(3)]
    assert scene.started == requests
    assert scene.quarantine.room(29) == 29


def test_a_suspect_is_examined_and_nothing_is_taken_until_it_ends(scene: Scene) -> None:
    suspect = scene.arrives("suspect", suspect=True)
    assert scene.quarantine.room(31) == 0
    scene.examined[0][1]()
    assert scene.quarantine.room(31) == 0
    scene.ends(suspect)
    assert scene.quarantine.room(32) == 1  # the next may be another
    scene.arrives("first delivery")
    assert scene.quarantine.room(31) == 31


def test_what_came_with_a_suspect_goes_back_in_its_order(scene: Scene) -> None:
    scene.arrives("suspect", suspect=True)
    scene.arrives("a")
    scene.arrives("b", suspect=True)
    scene.arrives("c")
    scene.look()
    assert scene.returned == [(["a", "b", "c"], False)]
    assert scene.started == []


def test_a_suspect_waits_for_those_at_work(scene: Scene) -> None:
    neighbour = scene.arrives("neighbour")
    suspect = scene.arrives("suspect", suspect=True)
    assert scene.quarantine.room(30) == 0
    scene.look()
    assert scene.examined == []
    scene.ends(neighbour)
    scene.look()
    assert [request for request, _ in scene.examined] == [suspect]


def test_a_suspect_does_not_wait_for_ever(scene: Scene) -> None:
    scene.arrives("endless")
    scene.arrives("suspect", suspect=True)
    scene.now = quarantine.PATIENCE_S + 1
    scene.look()
    assert scene.returned == [(["suspect"], True)]
    assert scene.quarantine.room(31) > 0


def test_a_suspect_that_runs_for_long_is_joined(scene: Scene) -> None:
    scene.arrives("slow", suspect=True)
    scene.examined[0][1]()
    scene.now = quarantine.ALONE_S + 1
    assert scene.quarantine.room(31) > 0
    other = scene.arrives("other")
    assert scene.started == [other]


def test_a_suspect_whose_connection_was_lost_is_forgotten(scene: Scene) -> None:
    scene.arrives("neighbour")
    suspect = scene.arrives("suspect", suspect=True)
    scene.ends(suspect)  # as Celery does when it connects anew
    scene.quarantine.reconnected()
    scene.look()
    assert scene.quarantine.room(31) == 31
    assert (scene.examined, scene.returned) == ([], [])


def test_a_message_that_cannot_be_begun_holds_no_room(scene: Scene) -> None:
    def refuse(_: Any) -> None:
        raise TypeError

    scene.quarantine.start = refuse
    with pytest.raises(TypeError):
        scene.arrives("bad")
    assert len(state.reserved_requests) == 0


def test_who_was_given_back_by_a_living_worker_is_no_suspect() -> None:
    assert is_suspect(Request(Message(None, ""), {"redelivered": True}))
    assert not is_suspect(Request(Message(None, ""), {"redelivered": True}, {RETURNED: True}))
    assert not is_suspect(Request(Message(None, ""), {"redelivered": False}))
