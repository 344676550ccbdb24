"""Who runs beside whom: a suspect alone, and what arrives meanwhile goes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from producer.transport_message import OVERDUE, RETURNED
from producer.transport_records import QoS
from worker import quarantine
from worker.quarantine import Quarantine
from worker.suspects import company, is_suspect, returns_of, verdict

WIDTH = 9  # threads of the worker
AMONG = 3  # and so this many suspects at once, the first time that they come back


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("neighbours", [0, 1, 9])
@pytest.mark.parametrize("beside", [[], [1], [6], [6] * 5, [6] * 6, [6, 3]])
@pytest.mark.parametrize("among", [None, 1, 3, 6])
def test_suspects_run_among_as_few_as_each_allows_and_beside_nothing_else(
    among: int | None, beside: list[int], neighbours: int, waiting: bool, closed: bool
) -> None:
    decided = verdict(among=among, beside=beside, neighbours=neighbours, closed=closed, waiting=waiting)
    if among is None:
        assert decided == ("back" if beside else "start")
    elif decided == "join":
        assert not neighbours
        assert len(beside) + 1 <= min([among, *beside]) or not beside
        assert not waiting
    elif not beside and not waiting:
        assert decided == "wait"  # what runs finishes first
    else:
        assert decided == "back"


def test_the_last_time_that_a_message_may_be_begun_it_runs_alone() -> None:
    for width, most in product(range(1, 70), range(2, 8)):
        sizes = [company(returns, most, width) for returns in range(1, most + 2)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[most - 2 :] == [1] * 3
        assert sizes[0] <= width


def test_three_deliveries_of_32_divide_by_the_root() -> None:
    assert [company(returns, 3, 32) for returns in (1, 2)] == [6, 1]
    assert [company(returns, 4, 27) for returns in (1, 2, 3)] == [9, 3, 1]


@pytest.mark.parametrize("counted", [None, "2", -3, 0, True, [], 2.5])
def test_a_count_that_is_none_is_the_first_return(counted: Any) -> None:
    assert returns_of(Request(Message(None, ""), {"redelivered": True}, {OVERDUE: counted})) == 1


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
        self.examined: list[tuple[Any, int, Callable[[], None]]] = []
        self.returned: list[tuple[list[str], bool]] = []
        self.later: list[Callable[[], None]] = []
        self.now = 0.0
        qos = QoS.__new__(QoS)
        qos.let_go = lambda tag: None  # type: ignore[method-assign]
        records = SimpleNamespace(put_back=lambda tags, last: self.returned.append((tags, last)))
        self.channel = Channel(qos, records)
        timer = SimpleNamespace(call_after=lambda _, callback: self.later.append(callback))
        self.quarantine = Quarantine(self.started.append, lambda *all_: self.examined.append(all_), timer, 3, WIDTH)

    def arrives(self, name: str, returns: int = 0) -> Request:
        request = Request(Message(self.channel, name), {"redelivered": returns > 0}, {OVERDUE: returns}, id=name)
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


def test_suspects_run_among_few_and_who_is_done_makes_room(scene: Scene) -> None:
    suspects = [scene.arrives(str(number), 1) for number in range(AMONG + 2)]
    assert [request for request, *_ in scene.examined] == suspects[:AMONG]
    assert {at_most for _, at_most, _ in scene.examined} == {2}
    scene.look()
    assert scene.returned == [(["3", "4"], False)]
    assert scene.quarantine.room(29) == 0
    scene.ends(suspects[0])
    assert scene.quarantine.room(29) == 0  # its examination is under way
    scene.examined[0][2]()
    assert scene.quarantine.room(29) == 1
    assert scene.arrives("next", 1) is scene.examined[-1][0]


def test_the_last_time_nothing_is_taken_until_it_ends(scene: Scene) -> None:
    suspect = scene.arrives("suspect", 2)
    assert scene.quarantine.room(31) == 0
    ((_, at_most, done),) = scene.examined
    assert at_most == 3
    done()
    assert scene.quarantine.room(31) == 0
    assert scene.quarantine.takes_nothing
    scene.ends(suspect)
    assert not scene.quarantine.takes_nothing
    assert scene.quarantine.room(32) == 1  # the next may be another
    scene.arrives("first delivery")
    assert scene.quarantine.room(31) == 31


@pytest.mark.parametrize("returns", [0, 2])
def test_what_may_not_join_has_the_next_turn(scene: Scene, returns: int) -> None:
    suspect = scene.arrives("suspect", 1)
    assert scene.quarantine.room(31) == AMONG - 1
    scene.arrives("other", returns)
    scene.look()
    assert scene.returned == [(["other"], False)]
    assert scene.quarantine.room(31) == 0
    assert scene.arrives("late", 1) not in [request for request, *_ in scene.examined]
    scene.examined[0][2]()
    scene.ends(suspect)
    assert scene.quarantine.room(31) == AMONG


def test_what_came_with_a_suspect_goes_back_in_its_order(scene: Scene) -> None:
    scene.arrives("suspect", 2)
    scene.arrives("a")
    scene.arrives("b", 1)
    scene.arrives("c")
    scene.look()
    assert scene.returned == [(["a", "b", "c"], False)]
    assert scene.started == []


def test_a_suspect_waits_for_those_at_work(scene: Scene) -> None:
    neighbour = scene.arrives("neighbour")
    suspect = scene.arrives("suspect", 1)
    assert scene.quarantine.room(30) == 0
    scene.look()
    assert scene.examined == []
    scene.ends(neighbour)
    scene.look()
    assert [request for request, *_ in scene.examined] == [suspect]


def test_a_suspect_does_not_wait_for_ever(scene: Scene) -> None:
    scene.arrives("endless")
    scene.arrives("suspect", 1)
    scene.now = quarantine.PATIENCE_S + 1
    scene.look()
    assert scene.returned == [(["suspect"], True)]
    assert scene.quarantine.room(31) > 0


def test_a_suspect_that_runs_for_long_is_joined(scene: Scene) -> None:
    scene.arrives("slow", 1)
    scene.examined[0][2]()
    scene.now = quarantine.APART_S + 1
    assert scene.quarantine.room(31) > 0
    other = scene.arrives("other")
    assert scene.started == [other]


def test_one_that_could_be_convicted_is_joined_by_nothing_however_long_it_takes(scene: Scene) -> None:
    scene.arrives("slow", 2)
    scene.examined[0][2]()
    scene.now = quarantine.APART_S + 1
    assert scene.quarantine.room(31) == 0
    scene.arrives("other")
    assert scene.started == []


def test_a_suspect_whose_connection_was_lost_is_forgotten(scene: Scene) -> None:
    scene.arrives("neighbour")
    suspect = scene.arrives("suspect", 1)
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
    assert is_suspect({"redelivered": True}, {})
    assert not is_suspect({"redelivered": True}, {RETURNED: True})
    assert not is_suspect({"redelivered": False}, {})
    assert not is_suspect(None, None)
