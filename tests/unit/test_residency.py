"""What stays in memory: builds shared, victims chosen, failures remembered, memory freed. Agents are plain objects."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laya.residency import REMEMBER_FAILURE_S, Residency, ResidentView, choose_victims

DEADLINE_S = 20


class Thing:
    """Stands where an Agent stands, so that a weak reference can see it go."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Seen(list[tuple[list[str], str | None]]):
    """The changes that were reported, in order."""

    def __call__(self, evicted: Sequence[str], built: tuple[str, Thing] | None) -> None:
        self.append((list(evicted), built and built[0]))


def never() -> Thing:
    raise AssertionError("built although it was resident")


names = st.lists(st.text("abcdef", min_size=1), unique=True, max_size=8)


@given(names, st.data())
def test_victims_are_the_least_recently_used_and_those_in_use_go_last(order: list[str], data: st.DataObject) -> None:
    residents = [ResidentView(name, data.draw(st.booleans())) for name in order]
    room = data.draw(st.integers(-1, 9))
    victims = choose_victims(residents, room)
    assert len(victims) == max(0, len(order) - max(0, room))
    idle = [one.name for one in residents if not one.in_use]
    busy = [one.name for one in residents if one.in_use]
    assert victims == (idle + busy)[: len(victims)]


def test_a_resident_checkpoint_is_not_built_again() -> None:
    seen = Seen()
    residency = Residency(2, on_change=seen)
    first = residency.get("a", Thing)
    assert residency.get("a", never) is first
    assert seen == [([], "a")]


def test_the_least_recently_used_goes_and_is_reported_with_what_came() -> None:
    seen = Seen()
    residency = Residency(2, on_change=seen)
    for name in ("a", "b", "a", "c"):
        residency.get(name, Thing)
    assert residency.names == ["a", "c"]
    assert seen[-1] == (["b"], "c")


def test_a_victim_in_use_is_not_chosen_while_another_can_be() -> None:
    residency = Residency(2, on_change=Seen())
    residency.get("a", Thing)
    with residency.use("a", never):
        residency.get("b", Thing)
        residency.get("c", Thing)
        assert residency.names == ["a", "c"]


def test_eight_threads_that_want_one_checkpoint_share_one_build() -> None:
    builds = []
    barrier = threading.Barrier(8)
    residency = Residency(1, on_change=Seen())

    def build() -> Thing:
        builds.append(threading.get_ident())
        return Thing()

    def want(_: int) -> Thing:
        barrier.wait(DEADLINE_S)
        found: Thing = residency.get("a", build)
        return found

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(want, range(8)))
    assert len(builds) == 1
    assert len(set(map(id, found))) == 1


def test_a_warm_request_never_waits_for_another_build() -> None:
    residency = Residency(2, on_change=Seen())
    residency.get("warm", Thing)
    building, finish = threading.Event(), threading.Event()

    def slow() -> Thing:
        building.set()
        assert finish.wait(DEADLINE_S)
        return Thing()

    with ThreadPoolExecutor(1) as pool:
        cold = pool.submit(residency.get, "cold", slow)
        assert building.wait(DEADLINE_S)
        residency.get("warm", never)
        assert not cold.done()
        finish.set()
        cold.result(DEADLINE_S)


def test_one_build_at_a_time_in_a_process() -> None:
    inside, most = [0], [0]
    lock = threading.Lock()
    barrier = threading.Barrier(4)

    def build() -> Thing:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        threading.Event().wait(0.01)  # long enough for another build to start, were it allowed to
        with lock:
            inside[0] -= 1
        return Thing()

    def want(name: str) -> None:
        barrier.wait(DEADLINE_S)
        Residency(4, on_change=Seen()).get(name, build)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(want, "abcd"))
    assert most == [1]


def test_a_failed_build_is_remembered_for_a_short_time_and_then_tried_again() -> None:
    clock = Clock()
    residency = Residency(1, on_change=Seen(), clock=clock)
    tries = []

    def broken() -> Thing:
        tries.append(clock.now)
        raise FileNotFoundError("checkpoint 'a': no file model.safetensors")

    for _ in range(3):
        with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
            residency.get("a", broken)
    assert len(tries) == 1
    clock.now += REMEMBER_FAILURE_S
    residency.get("a", Thing)
    assert residency.names == ["a"]


class NeedsMore(Exception):
    """An error that cannot be rebuilt from its arguments."""

    def __init__(self, message: str, *, response: object) -> None:
        super().__init__(message)
        self.response = response


def noted(error: Exception) -> Exception:
    error.add_note("said where it was raised")
    return error


@pytest.mark.parametrize(
    "error",
    [
        noted(ValueError("checkpoint refused")),
        noted(FileNotFoundError(2, "No such file", "/models/english")),
        noted(NeedsMore("gated repository", response=object())),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_remembered_failure_is_raised_as_what_it_was(error: Exception) -> None:
    residency = Residency(1, on_change=Seen(), clock=Clock())

    def broken() -> Thing:
        raise error

    raised = []
    for _ in range(3):
        with pytest.raises(type(error)) as caught:
            residency.get("a", broken)
        raised.append(caught.value)
    assert len(set(map(id, raised))) == 3
    assert {(str(one), *map(str, one.args)) for one in raised} == {(str(error), *map(str, error.args))}
    assert [len(getattr(one, "__notes__", [])) for one in raised] == [1, 2, 2], "notes must not pile up"


def test_forgetting_a_failure_lets_the_next_load_try_at_once() -> None:
    residency = Residency(1, on_change=Seen(), clock=Clock())

    def broken() -> Thing:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        residency.get("a", broken)
    residency.forget_failure("a")
    residency.get("a", Thing)


def test_every_thread_that_shares_a_failed_build_gets_its_error() -> None:
    residency = Residency(1, on_change=Seen())
    building, finish = threading.Event(), threading.Event()

    def broken() -> Thing:
        building.set()
        assert finish.wait(DEADLINE_S)
        raise ValueError("broken")

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(residency.get, "a", broken)]
        assert building.wait(DEADLINE_S)
        calls += [pool.submit(residency.get, "a", broken) for _ in range(3)]
        finish.set()
        errors = [call.exception(DEADLINE_S) for call in calls]
    assert [type(error) for error in errors] == [ValueError] * 4
    assert len(set(map(id, errors))) == 4, "two threads must not share one exception and its traceback"


def test_a_thread_interrupted_while_building_leaves_the_build_to_a_waiting_one() -> None:
    residency = Residency(1, on_change=Seen())
    building, finish = threading.Event(), threading.Event()

    def interrupted() -> Thing:
        building.set()
        assert finish.wait(DEADLINE_S)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(residency.get, "a", interrupted)
        assert building.wait(DEADLINE_S)
        second = pool.submit(residency.get, "a", Thing)
        finish.set()
        assert isinstance(first.exception(DEADLINE_S), KeyboardInterrupt)
        assert isinstance(second.result(DEADLINE_S), Thing)


@pytest.mark.parametrize("evict_first", [False, True])
def test_an_evicted_checkpoint_is_freed_before_the_next_one_loads(evict_first: bool) -> None:
    residency = Residency(1, on_change=Seen(), evict_first=evict_first)
    gone = weakref.ref(residency.get("a", Thing))
    gc.disable()
    try:
        residency.get("b", _freed_first(gone) if evict_first else Thing)
        residency.get("c", _freed_first(gone))
    finally:
        gc.enable()


def _freed_first(gone: weakref.ref[Thing]) -> Callable[[], Thing]:
    def build() -> Thing:
        assert gone() is None, "an evicted checkpoint still holds its memory"
        return Thing()

    return build


def test_evicting_first_waits_until_calls_in_flight_let_go_of_the_victim() -> None:
    residency = Residency(1, on_change=Seen(), evict_first=True)
    using, let_go = threading.Event(), threading.Event()

    def call() -> weakref.ref[Thing]:
        with residency.use("a", Thing) as thing:
            using.set()
            assert let_go.wait(DEADLINE_S)
            return weakref.ref(thing)

    def build() -> Thing:
        assert let_go.is_set(), "built while the victim was still in use"
        return Thing()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(call)
        assert using.wait(DEADLINE_S)
        second = pool.submit(residency.get, "b", build)
        while "a" in residency.names:
            pass  # the second thread takes the victim out before it waits for its users
        let_go.set()
        second.result(DEADLINE_S)
        assert first.result(DEADLINE_S)() is None


def test_evictions_are_reported_although_the_build_after_them_failed() -> None:
    seen = Seen()
    residency = Residency(1, on_change=seen, evict_first=True)
    residency.get("a", Thing)

    def broken() -> Thing:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        residency.get("b", broken)
    assert seen == [([], "a"), (["a"], None)]
    assert residency.names == []


def test_what_hears_of_a_load_may_load_another() -> None:
    calls: list[str] = []

    def follow(evicted: Sequence[str], built: tuple[str, Thing]) -> None:
        calls.append(built[0])
        if built[0] == "a":
            residency.get("b", Thing)

    residency = Residency(2, on_change=follow)
    residency.get("a", Thing)
    assert calls == ["a", "b"]


def test_a_listener_that_fails_leaves_the_checkpoint_resident_and_unused() -> None:
    def refuse(evicted: Sequence[str], built: tuple[str, Thing]) -> None:
        if built[0] == "a":
            raise RuntimeError("listener")

    residency = Residency(1, on_change=refuse)
    with pytest.raises(RuntimeError, match="listener"):
        residency.get("a", Thing)
    residency.get("a", never)
    residency.get("b", Thing)
    assert residency.names == ["b"]


def test_putting_an_agent_makes_room_for_it_beside_the_others() -> None:
    residency = Residency(1, on_change=Seen())
    residency.get("a", Thing)
    residency.put("mine", Thing())
    assert residency.names == ["a", "mine"]
    assert residency.max_loaded == 2
