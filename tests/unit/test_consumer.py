"""When a worker tells of its tasks: once for what happens within some milliseconds, and never not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from worker import consumer
from worker.consumer import EVENTS_S, LATE_S, PersistentConsumer


class Timers:
    """Calls that are due, as a hub keeps them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[tuple[float, Callable[[], Any]]] = []

    def call_after(self, seconds: float, call: Callable[[], Any]) -> None:
        self.calls.append((self.now + seconds, call))

    def turn(self, seconds: float) -> None:
        """Let time pass, and call what is due by then."""
        self.now += seconds
        due = [call for at, call in self.calls if at <= self.now]
        self.calls = [entry for entry in self.calls if entry[0] > self.now]
        for call in due:
            call()


class Dispatcher:
    """Counts how often it is told to publish."""

    published = 0

    def flush(self) -> None:
        self.published += 1


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    made = Timers()
    monkeypatch.setattr(consumer, "monotonic", lambda: made.now)
    return made


@pytest.fixture
def telling(timers: Timers) -> PersistentConsumer:
    made = object.__new__(PersistentConsumer)
    made.timer, made.event_dispatcher = timers, Dispatcher()
    return made


def test_what_happens_within_milliseconds_is_told_at_once(telling: PersistentConsumer, timers: Timers) -> None:
    for _ in range(3):
        telling._flush_events()
        timers.turn(EVENTS_S / 4)
    assert len(timers.calls) == 1
    assert telling.event_dispatcher.published == 0
    timers.turn(EVENTS_S)
    assert telling.event_dispatcher.published == 1
    assert timers.calls == []


@pytest.mark.parametrize("later", [EVENTS_S / 2, EVENTS_S, 3 * EVENTS_S])
def test_whatever_happens_is_told_after_it(telling: PersistentConsumer, timers: Timers, later: float) -> None:
    telling._flush_events()
    timers.turn(later)
    before = telling.event_dispatcher.published
    telling._flush_events()
    timers.turn(EVENTS_S)
    assert telling.event_dispatcher.published == before + 1


def test_a_loop_that_has_forgotten_its_timers_is_no_end_of_events(telling: PersistentConsumer, timers: Timers) -> None:
    telling._flush_events()
    timers.calls.clear()  # the connection was lost
    timers.turn(EVENTS_S + 2 * LATE_S)
    telling._flush_events()
    timers.turn(EVENTS_S)
    assert telling.event_dispatcher.published == 1
