"""Parts of the skip cache that decide something: the circuit breaker, who waits for whom, the first level, settings."""

from __future__ import annotations

import logging
import marshal
import threading
from typing import Any

import pytest
from pydantic import ValidationError

import hooks
from hooks import SkipCache, cache_local
from hooks.cache_breaker import CLOSED, HALF_OPEN, OPEN, Breaker
from hooks.cache_flight import ALONE, Flights
from hooks.cache_local import ENTRY_BYTES, LocalLevel
from hooks.cache_settings import CacheSettings

# --- the breaker ---


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker("The thing", failures=3, pause=5.0, clock=clock)


def fail(breaker: Breaker, times: int) -> None:
    for _ in range(times):
        breaker.failed("Timeout")


def test_it_opens_after_failures_in_a_row(breaker: Breaker) -> None:
    fail(breaker, 2)
    breaker.succeeded()
    fail(breaker, 2)
    assert breaker.allows()
    fail(breaker, 1)
    assert (breaker.state, breaker.allows()) == (OPEN, False)


def test_after_the_pause_one_probe_decides(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 5
    assert [breaker.allows(), breaker.allows(), breaker.state] == [True, False, HALF_OPEN]
    fail(breaker, 1)
    assert (breaker.state, breaker.allows()) == (OPEN, False)
    clock.now += 5
    assert breaker.allows()
    breaker.succeeded()
    assert (breaker.state, breaker.allows()) == (CLOSED, True)


def test_a_probe_that_never_reports_is_followed_by_another(breaker: Breaker, clock: Clock) -> None:
    fail(breaker, 3)
    clock.now += 5
    assert breaker.allows()
    clock.now += 5
    assert breaker.allows()


def test_a_success_from_before_the_failures_closes_nothing(breaker: Breaker) -> None:
    fail(breaker, 3)
    breaker.succeeded()
    assert breaker.state == OPEN


def test_each_change_is_one_line_in_the_log(breaker: Breaker, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fail(breaker, 30)
    for _ in range(3):
        clock.now += 5
        assert breaker.allows()
        fail(breaker, 1)
    clock.now += 5
    assert breaker.allows()
    for _ in range(5):
        breaker.succeeded()
    assert [record.getMessage() for record in caplog.records] == [
        "The thing does not work (Timeout): predictions go on without it, and it is tried again every 5 s",
        "The thing works again",
    ]


# --- who waits for whom ---


def join(flights: Flights, name: str, call_id: str | None, **options: Any) -> Any:
    return flights.join(name, call_id, 10.0, **{"may_wait": True, **options})


def test_the_second_waits_for_the_first_and_gets_its_answer() -> None:
    flights = Flights()
    first, second = join(flights, "a", "1"), join(flights, "a", "2")
    assert (first.leads, second.leads, second.flight is first.flight) == (True, False, True)
    got: list[bytes | None] = []

    def wait() -> None:
        assert second.flight.done.wait(30)
        got.append(second.flight.text)

    waiting = threading.Thread(target=wait)
    waiting.start()
    flights.land(first.flight, b"answer")
    waiting.join(30)
    assert got == [b"answer"]


def test_who_comes_after_the_landing_has_the_answer_at_once_until_the_flight_is_over() -> None:
    flights = Flights()
    first = join(flights, "a", "1")
    flights.land(first.flight, b"answer")
    late = join(flights, "a", "2")
    assert (late.leads, late.flight.text) == (False, b"answer")
    flights.end(first.flight)
    assert join(flights, "a", "3").leads


def test_a_landing_without_an_answer_sends_everybody_off_at_once() -> None:
    flights = Flights()
    first, second = join(flights, "a", "1"), join(flights, "a", "2")
    flights.land(first.flight, None)
    assert (second.flight.done.is_set(), second.flight.text) == (True, None)
    assert join(flights, "a", "3").leads


def test_a_call_never_waits_for_itself_nor_while_others_wait_for_it() -> None:
    flights = Flights()
    join(flights, "a", "1")
    join(flights, "b", "2")
    assert join(flights, "a", "1") == ALONE
    assert join(flights, "b", "1") == ALONE
    assert join(flights, "a", "2") == ALONE


def test_a_call_waits_again_when_nobody_waits_for_it_any_longer() -> None:
    flights = Flights()
    mine, theirs = join(flights, "a", "1"), join(flights, "b", "2")
    flights.land(mine.flight, b"answer")
    assert join(flights, "b", "1").flight is theirs.flight


def test_who_must_not_wait_and_who_belongs_to_no_known_call_does_not() -> None:
    flights = Flights()
    join(flights, "a", "1")
    assert join(flights, "a", "2", may_wait=False) == ALONE
    assert join(flights, "a", None) == ALONE


def test_a_flight_that_is_lost_is_begun_anew(clock: Clock) -> None:
    flights = Flights(clock)
    lost = join(flights, "a", "1")
    clock.now += 11
    second = join(flights, "a", "2")
    assert second.leads
    flights.land(lost.flight, b"late")
    flights.end(lost.flight)
    assert join(flights, "a", "3").flight is second.flight


def test_who_claims_a_search_is_joined_unless_somebody_here_has_begun_it() -> None:
    flights = Flights()
    mine = flights.claim("a", "1", 10.0)
    assert join(flights, "a", "2").flight is mine
    begun = join(flights, "b", "2").flight
    beside = flights.claim("b", "3", 10.0)
    assert join(flights, "b", "4").flight is begun
    flights.land(beside, b"answer")
    flights.end(beside)
    assert join(flights, "b", "4").flight is begun
    assert not begun.done.is_set()


def test_a_call_that_claimed_leads_until_the_last_of_its_flights_has_landed() -> None:
    flights = Flights()
    join(flights, "b", "2")
    claims = [flights.claim(name, "1", 10.0) for name in ("a", "b")]
    for claim in claims:
        assert flights.leads("1")
        assert join(flights, "b", "1") == ALONE
        flights.land(claim, b"answer")
    assert not flights.leads("1")
    assert flights.leads(None)  # which cannot be known


def test_no_flight_is_left_behind() -> None:
    flights = Flights()
    for claim in (flights.claim("a", "1", 10.0), flights.claim("a", "2", 10.0)):
        flights.land(claim, None)
    for text in (b"answer", None):
        seat = join(flights, "a", "1")
        flights.land(seat.flight, text)
        flights.end(seat.flight)
    assert (flights._flights, dict(flights._leading)) == ({}, {})


# --- the first level ---


def test_the_first_level_is_bounded_by_bytes_and_keeps_the_newest() -> None:
    result = {"answers": "x" * 100}
    level = LocalLevel(10 * (ENTRY_BYTES + len(marshal.dumps(result))))
    for number in range(100):
        level.put(str(number), result)
    assert [name for name in map(str, range(100)) if level.has(name)] == [str(number) for number in range(90, 100)]
    level.put("large", {"answers": "x" * 100_000})
    assert level.get("large") is None
    assert level.get("99") == result


def test_the_first_level_forgets_after_some_seconds() -> None:
    now = 0.0
    level = LocalLevel(10_000, clock=lambda: now)
    level.put("a", {"answers": {}})
    now = cache_local.SECONDS - 0.1
    assert level.get("a") == {"answers": {}}
    now = cache_local.SECONDS
    assert (level.get("a"), level.has("a")) == (None, False)


def test_what_a_call_does_to_its_result_does_not_reach_the_first_level() -> None:
    level = LocalLevel(10_000)
    level.put("a", result := {"answers": {"q": {"choice": "yes"}}})
    for one in (result, level.get("a") or {}):
        one["routing"] = "mine"
        one["answers"]["q"]["low_confidence"] = True
    assert level.get("a") == {"answers": {"q": {"choice": "yes"}}}


def test_without_bytes_there_is_no_first_level() -> None:
    level = LocalLevel(0)
    level.put("a", {"answers": {}})
    assert level.get("a") is None


# --- settings ---


@pytest.mark.parametrize(
    ("cache", "broker", "one"),
    [
        (None, "redis://broker/0", True),
        ("redis://broker/1", "redis://broker/0", True),
        ("redis://:secret@broker:6379/1", "redis://broker/0", True),
        ("redis://broker:6380", "redis://broker/0", False),
        ("redis://cache", "redis://broker/0", False),
        ("redis://cache", "sentinel://one:26379;sentinel://two:26379", False),
        ("unix:///run/cache.sock", "redis://broker/0", False),
    ],
)
def test_one_server_for_both_works_with_a_warning(
    cache: str | None, broker: str, one: bool, caplog: pytest.LogCaptureFixture
) -> None:
    SkipCache(CacheSettings(cache_url=cache, broker_url=broker))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * one
    assert "secret" not in caplog.text


def test_the_hook_reads_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYA_CACHE_URL", "redis://user:secret@cache:7000/3")
    assert repr(hooks.SkipCache()) == "SkipCache(cache:7000, closed)"
    assert "secret" not in repr(CacheSettings())


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"LAYA_CACHE_URL": "http://cache:secret@host"}, "begins with redis://, rediss:// or unix://"),
        ({"LAYA_CACHE_TTL": "0"}, "greater than 0"),
        ({"LAYA_CACHE_BUDGET_MS": "-1"}, "greater than 0"),
        ({"LAYA_NAMESPACE": "a:b"}, "pattern"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError) as refusal:
        SkipCache()
    assert said in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_sentinels_are_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYA_BROKER_URL", "sentinel://one:26379")
    with pytest.raises(ValueError, match="LAYA_CACHE_URL"):
        SkipCache()
