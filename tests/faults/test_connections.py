"""Connections that are cut, silent or slow, and servers that are away: broker and result store each on its own.

Workers are back within ten seconds of the server; whoever waits for an answer gets it, or an error in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from producer import watch
from producer.bulk import predict_many
from producer.errors import BrokerUnavailable, DeadlineExceeded, LayaError
from tests.faults.rig import QUESTIONS, Line, Rig
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until

BACK_S = 10.0
"""Within this a worker serves again, from the server's return on."""

SLACK_S = 10.0
"""What a loaded machine may add to a wait."""

SIDES = ["broker", "results"]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("connections")) as made:
        yield made


@pytest.fixture(scope="module")
def worker(rig: Rig) -> WorkerProcess:
    started = rig.worker("-c", "4").start()
    rig.predict("warm")
    return started


def is_back(rig: Rig, worker: WorkerProcess) -> None:
    """Answers come again, each within the time that a worker has to be back."""
    started = time.monotonic()
    assert rig.predict("is anybody there", BACK_S + SLACK_S)
    assert time.monotonic() - started < BACK_S + SLACK_S
    assert worker.process is not None
    assert worker.process.poll() is None
    wait_until(rig.settled, rig.visibility + 10, "the acknowledgements")


@pytest.mark.parametrize("side", SIDES)
def test_a_worker_takes_again_after_its_connections_were_killed_three_times(
    side: str, rig: Rig, worker: WorkerProcess
) -> None:
    line: Line = getattr(rig, side)
    for _ in range(3):
        line.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        line.proxy.cut()  # also those that have subscribed
        is_back(rig, worker)


# Longer than a worker needs to notice, so that it tries to connect meanwhile; and shorter.
@pytest.mark.parametrize(("side", "silent_s"), [("broker", 7.0), ("results", 1.0)])
def test_a_worker_takes_again_after_the_network_has_swallowed_everything(
    side: str, silent_s: float, rig: Rig, worker: WorkerProcess
) -> None:
    line: Line = getattr(rig, side)
    line.proxy.silence()
    time.sleep(silent_s)
    line.proxy.forward()
    is_back(rig, worker)


@pytest.mark.parametrize("side", SIDES)
def test_a_worker_takes_again_when_the_server_is_back(side: str, rig: Rig, worker: WorkerProcess) -> None:
    line: Line = getattr(rig, side)
    line.server.kill()
    time.sleep(1.5)  # some attempts to connect
    line.server.start()
    is_back(rig, worker)


def test_a_slow_network_costs_time_and_no_answer(rig: Rig, worker: WorkerProcess) -> None:
    rig.broker.proxy.slow(0.1)
    rig.results.proxy.slow(0.1)
    try:
        results = [rig.ask(f"slow {number}") for number in range(8)]
        assert all("answers" in result.get(timeout=30) for result in results)
    finally:
        rig.broker.proxy.forward()
        rig.results.proxy.forward()
    is_back(rig, worker)


# --- the result store, away while there is something to store ---


def test_a_result_waits_for_its_store_and_the_worker_takes_no_more_meanwhile(rig: Rig, worker: WorkerProcess) -> None:
    said = len(worker.text())
    running = rig.ask("sleep 1")
    wait_until(lambda: rig.broker.client.hlen("unacked") == 1, what="the start")
    rig.results.server.kill()
    wait_until(lambda: "does not take a result" in worker.text()[said:], what="an attempt to store")
    later = [rig.ask(f"later {number}") for number in range(3)]
    time.sleep(1.5)  # longer than a worker needs to take what waits
    assert rig.waiting() == len(later)
    rig.results.server.start()
    assert all("answers" in result.get(timeout=30) for result in [running, *later])
    wait_until(rig.settled, 10, "the acknowledgements")


def test_a_worker_that_ends_while_its_store_is_away_puts_the_request_back(rig: Rig) -> None:
    ending = rig.worker("-c", "2", "-Q", "ending").start()
    rig.ask("sleep 1", queue="ending")
    wait_until(lambda: rig.broker.client.hlen("unacked") == 1, what="the start")
    rig.results.server.kill()
    assert ending.terminate() == 0
    rig.results.server.start()
    assert rig.broker.client.hlen("unacked") == 0
    assert rig.broker.client.llen("ending") == 1


# --- those who ask ---


@pytest.fixture
def asking(rig: Rig, worker: WorkerProcess) -> Iterator[tuple[Backend, Callable[[str], None]]]:
    """A backend that goes through the proxies, and what makes one of its servers silent."""
    backend = rig.make_backend(rig.broker.proxy.url, rig.results.proxy.url)
    yield backend, lambda side: getattr(rig, side).proxy.silence()
    rig.broker.proxy.forward()
    rig.results.proxy.forward()


@pytest.mark.parametrize("side", SIDES)
def test_who_asks_a_silent_server_gets_an_error_in_time(
    side: str, asking: tuple[Backend, Callable[[str], None]]
) -> None:
    backend, silence = asking
    request = {"state": "x", "questions": QUESTIONS, "model": "english"}
    ways: list[Callable[[], Any]] = [
        lambda: backend.predict("x", QUESTIONS, 1, model="english"),
        lambda: asyncio.run(backend.apredict("x", QUESTIONS, 1, model="english")),
        lambda: list(predict_many([request], timeout=1, task=backend.submit_predictions)),
    ]

    def error_of(way: Callable[[], Any]) -> tuple[type[BaseException], float]:
        started = time.monotonic()
        with pytest.raises(LayaError) as caught:
            way()
        return caught.type, time.monotonic() - started

    backend.predict("x", QUESTIONS, 20, model="english")  # there are connections now, to go silent
    silence(side)
    with ThreadPoolExecutor() as threads:
        for kind, seconds in threads.map(error_of, ways):
            assert kind in {BrokerUnavailable, DeadlineExceeded}
            assert seconds < 1 + 2 + SLACK_S


def test_a_get_without_a_timeout_ends_when_the_connection_goes_silent(
    asking: tuple[Backend, Callable[[str], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(watch, "_SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(watch, "_TICK_SECONDS", 0.2)
    backend, silence = asking
    result = backend.submit_prediction.apply_async(("x", QUESTIONS), {"model": "english"}, queue="nobody")
    with pytest.raises(Exception, match="timed out"):
        result.get(timeout=0.2)
    silence("results")
    started = time.monotonic()
    with pytest.raises(LayaError):
        result.get()
    assert time.monotonic() - started < 20
