"""The skip cache's server is stopped, slow, full, restarted or not itself: no prediction fails, is wrong, or waits."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from hooks import SkipCache
from hooks.cache_flight import Flights
from hooks.cache_settings import CacheSettings, address_of
from laya import Agent, Router
from laya.simulated import write_checkpoint
from tests.faults.proxy import Proxy
from tests.integration.tls_proxy import CA, TlsProxy
from worker.server import EmbeddedServer

ROOT = Path(__file__).resolve().parents[2]

QUESTIONS: dict[str, Any] = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "money", "support": None}},
    "angry": {"type": "noul", "instructions": "The customer is angry."},
}

PAUSE_S = 0.3
"""How long a cache out of order is left alone here."""

CALLS = 40
"""In a fault; most of them find the cache left alone."""

WAITED_S = 2.0
"""What the slowest call may take here, where a budget of 20 ms is all that it may wait: others share the machine. The
figure is the benchmark's; without a budget a call would wait for ever."""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    return Agent(str(write_checkpoint(tmp_path_factory.mktemp("fast") / "one", pass_ms=0, row_ms=0)), device="cpu")


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(options={"maxmemory": "100mb", "maxmemory-policy": "noeviction"}) as running:
        yield running


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[Proxy]:
    assert server.port is not None
    with Proxy(server.port) as between:
        yield between


class Asking:
    """A Router without a cache, and one with a cache that keeps nothing in memory, where faults would hide."""

    def __init__(self, agent: Agent, url: str, **settings: Any) -> None:
        settings = {"cache_url": url, "broker_url": "redis://elsewhere", "cache_pause": PAUSE_S, **settings}
        settings.setdefault("cache_local_bytes", 0)
        self.cache = SkipCache(CacheSettings(**settings), flights=Flights())
        self.router, self.bare = Router(hooks=self.cache, defer_load=True), Router()
        for router in (self.router, self.bare):
            router.attach("multilingual", agent)

    def ask(self, state: str) -> float:
        """Ask, check the answer, and return the seconds that it took."""
        started = time.perf_counter()
        answer = self.router.predict(state, QUESTIONS, model="multilingual")
        seconds = time.perf_counter() - started
        assert json.dumps(answer) == json.dumps(self.bare.predict(state, QUESTIONS, model="multilingual"))
        return seconds

    def warm(self, states: list[str]) -> None:
        """Ask until each of these is a hit."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            before = self.cache.stats().hits
            for state in states:
                self.ask(state)
            self.cache.flush()
            stats = self.cache.stats()
            if stats.hits - before == len(states) and stats.state == "closed":
                return
            time.sleep(0.05)
        raise AssertionError(f"the cache does not work: {self.cache.stats()}")


def listed(*states: str) -> list[dict[str, Any]]:
    return [{"state": state, "questions": QUESTIONS, "model": "multilingual"} for state in states]


@pytest.fixture
def make_asking(agent: Agent) -> Iterator[Callable[..., Asking]]:
    made: list[Asking] = []

    def make(url: str, **settings: Any) -> Asking:
        made.append(Asking(agent, url, **settings))
        return made[-1]

    yield make
    for asking in made:
        asking.cache._writer.drop()  # what is not written yet would open connections to the server of the next test
        asking.cache._store.close()


def said(caplog: pytest.LogCaptureFixture, asking: Asking) -> list[logging.LogRecord]:
    """What was said of this cache's server. The cache of a test before may still be writing to one that has gone."""
    of_breakers = (record for record in caplog.records if record.name == "hooks.cache_breaker")
    where = address_of(asking.cache._settings.url)
    return [record for record in of_breakers if where in record.getMessage()]


def levels(caplog: pytest.LogCaptureFixture, asking: Asking) -> list[str]:
    return [record.levelname for record in said(caplog, asking)]


FAULTS = {
    "killed": (lambda server, proxy: server.kill(), lambda server, proxy: server.start()),
    "hanging": (
        lambda server, proxy: os.kill(server.pid, signal.SIGSTOP),
        lambda server, proxy: os.kill(server.pid, signal.SIGCONT),
    ),
    "slow": (lambda server, proxy: proxy.slow(0.2), lambda server, proxy: proxy.forward()),
    "silent": (lambda server, proxy: proxy.silence(), lambda server, proxy: (proxy.cut(), proxy.forward())),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cache_out_of_order_costs_nothing_but_its_hits_and_comes_back_by_itself(
    fault: str,
    server: EmbeddedServer,
    proxy: Proxy,
    make_asking: Callable[..., Asking],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    asking = make_asking(proxy.url)
    known = [f"known {number}" for number in range(CALLS // 2)]  # each asked once: a lost answer is not remembered here
    asking.warm(known)
    caplog.clear()
    begin, end = FAULTS[fault]
    begin(server, proxy)
    try:
        began = time.monotonic()
        times = [asking.ask(state) for number, one in enumerate(known) for state in (one, f"new {number}")]
        assert max(times) < WAITED_S, times
        # Left alone, most of the time: five failures, then one for each pause.
        assert 5 <= asking.cache.stats().errors <= 10 + (time.monotonic() - began) / PAUSE_S
    finally:
        end(server, proxy)
    asking.warm(known)
    assert set(levels(caplog, asking)[0::2]) == {"WARNING"}
    assert set(levels(caplog, asking)[1::2]) == {"INFO"}
    assert len(levels(caplog, asking)) % 2 == 0


def test_many_threads_are_delayed_once_each_at_most(server: EmbeddedServer, make_asking: Callable[..., Asking]) -> None:
    asking = make_asking(server.url, cache_pause=30.0)
    asking.warm(["one"])
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(16) as pool:
            times = list(pool.map(asking.ask, [f"{number}" for number in range(16 * 20)]))
        assert max(times) < WAITED_S
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert asking.cache.stats().errors <= 5 + 16 + 1


def test_a_full_server_still_answers_and_keeps_again_when_it_has_room(
    server: EmbeddedServer, make_asking: Callable[..., Asking], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    asking = make_asking(server.url, cache_budget_ms=5000)  # a busy machine is no reason to miss
    asking.warm(["one"])
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "1mb")  # less than an empty server takes
        hits = asking.cache.stats().hits
        for number in range(8):
            asking.ask("one")
            asking.ask(f"new {number}")
            asking.cache.flush()
        stats = asking.cache.stats()
        assert (stats.hits - hits, stats.unstored, stats.state) == (8, 8, "closed")
        warnings = [record for record in said(caplog, asking) if record.levelname == "WARNING"]
        assert [record.getMessage().split(":")[0] for record in warnings] == ["Writing to the skip cache at 127.0.0.1"]
        client.config_set("maxmemory", "100mb")
        time.sleep(PAUSE_S)
        asking.warm(["new 0"])
        assert client.keys("*lease*") == []


@pytest.mark.parametrize("trouble", ["full", "read-only"])
def test_a_server_that_takes_no_leases_delays_no_list(
    trouble: str, server: EmbeddedServer, make_asking: Callable[..., Asking]
) -> None:
    asking = make_asking(server.url, cache_budget_ms=5000, cache_lease=60.0)
    asking.warm(["one"])
    with redis.Redis.from_url(server.url) as client:
        if trouble == "full":
            client.config_set("maxmemory", "1mb")
        else:
            client.replicaof("127.0.0.1", "1")  # of nobody: it tells what it has
        lists = [listed("one", *(f"{number} {at}" for at in range(9))) for number in range(4)]
        expected = [json.dumps(asking.bare.predict_batch(requests)) for requests in lists]
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(asking.router.predict_batch, lists * 4))
        assert [json.dumps(answer) for answer in answers] == expected * 4
        assert asking.cache.flush()
        assert (asking.cache.stats().waits, asking.cache.stats().errors >= 1) == (0, True)
        assert client.keys("*lease*") == []


def test_a_list_asks_a_server_out_of_order_once(
    server: EmbeddedServer, make_asking: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = make_asking(server.url, cache_pause=30.0)
    asking.warm(["one"])
    asked: list[Any] = []
    ask = asking.cache._store._read  # the counted errors are those of writes too

    def counted(commands: Any, *arguments: Any) -> Any:
        asked.append(commands)
        return ask(commands, *arguments)

    monkeypatch.setattr(asking.cache._store, "_read", counted)
    requests = listed("one", *(f"{number}" for number in range(299)))
    expected = json.dumps(asking.bare.predict_batch(requests))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for number in range(3):
            started = time.perf_counter()
            assert json.dumps(asking.router.predict_batch(requests)) == expected
            assert time.perf_counter() - started < WAITED_S
            assert len(asked) == number + 1
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_server_that_was_restarted_is_used_again_at_once(
    server: EmbeddedServer, make_asking: Callable[..., Asking], caplog: pytest.LogCaptureFixture
) -> None:
    asking = make_asking(server.url, cache_budget_ms=5000)  # so that nothing but the connections is at stake
    asking.warm(["one"])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(asking.ask, [f"{number}" for number in range(64)]))  # several connections
    assert asking.cache.flush(60)  # else writes fail while the server is away, and it is left alone when it is back
    server.kill()
    server.start()
    errors = asking.cache.stats().errors
    for number in range(20):
        asking.ask(f"{number}")
    assert asking.cache.stats().errors == errors
    assert levels(caplog, asking) == []
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
        client.script_flush()
    asking.warm(["one"])


class Impostor:
    """Listens like a server and says something else: the same to whatever it hears, or byte by byte."""

    def __init__(self, says: bytes, *, pieces: float = 0.0) -> None:
        self._says, self._pieces = says, pieces
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, what: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=what, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                plug, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(plug)
            self._begin(self._talk, plug)

    def _talk(self, plug: socket.socket) -> None:
        try:
            while heard := plug.recv(65536):
                if b"SETINFO" in heard:  # the greeting of redis-py
                    plug.sendall(b"+OK\r\n")
                    continue
                if not self._pieces:
                    plug.sendall(self._says)
                    continue
                for byte in self._says:
                    plug.sendall(bytes([byte]))
                    time.sleep(self._pieces)
        except OSError:
            return

    def close(self) -> None:
        for plug in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                plug.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it
            plug.close()
        for thread in self._threads:
            thread.join(10)
        for plug in self._open:
            plug.close()


GARBAGE = {
    "nothing": b"",
    "a web server": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "noise": bytes(range(256)),
    "a number": b":17\r\n",
    "a lease for everybody": b":1\r\n",
    "a lease for nobody": b":0\r\n",
    "a text": b"$5\r\nhello\r\n",
    "two answers": b"$2\r\nj1\r\n$2\r\nj1\r\n",
    "a list": b"*1\r\n$-1\r\n",
    "no list": b"*-1\r\n",
    "a length of terabytes": b"$9999999999999\r\n",
    "a refusal": b"-NOAUTH Authentication required.\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "an unknown script, for ever": b"-NOSCRIPT No matching script.\r\n",
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_server_that_answers_garbage_is_never_believed(what: str, make_asking: Callable[..., Asking]) -> None:
    impostor = Impostor(GARBAGE[what])
    try:
        asking = make_asking(impostor.url, cache_lease=0.1)
        times = [asking.ask(f"{number}") for number in range(16)]
        batch = listed("one", "two", "one")
        assert json.dumps(asking.router.predict_batch(batch)) == json.dumps(asking.bare.predict_batch(batch))
    finally:
        impostor.close()
    assert asking.cache.stats().hits == 0
    assert max(times) < WAITED_S


def test_an_answer_that_comes_byte_by_byte_is_given_up_at_the_end_of_the_budget(
    make_asking: Callable[..., Asking],
) -> None:
    impostor = Impostor(b"$5000\r\n" + b"x" * 5000, pieces=0.005)
    try:
        asking = make_asking(impostor.url)
        times = [asking.ask(f"{number}") for number in range(10)]
    finally:
        impostor.close()
    assert max(times) < WAITED_S
    assert asking.cache.stats().errors >= 5


HOLDER = """
import sys, time
from hooks import SkipCache
from laya import Router
router = Router(models={"multilingual": sys.argv[1]}, device="cpu", hooks=SkipCache(), defer_load=True)
def hang(ctx):
    print("computing", flush=True)
    time.sleep(600)
one = {"questions": {"q": {"type": "noul", "instructions": "Is it?"}}, "model": "multilingual"}
if sys.argv[2] == "one":
    router.predict("held 0", **one, on_predict_start=hang)
router.predict_batch([{"state": f"held {at}", **one} for at in range(3)], on_predict_start=hang)
"""


@pytest.mark.parametrize("number", [1, 3])
def test_a_process_that_dies_while_it_computes_delays_others_no_longer_than_its_lease(
    number: int, server: EmbeddedServer, make_asking: Callable[..., Asking], tmp_path: Path
) -> None:
    checkpoint = str(write_checkpoint(tmp_path / "one", pass_ms=0))
    environment = {**os.environ, "LAYA_CACHE_URL": server.url, "LAYA_CACHE_LEASE": "2", "LAYA_CACHE_BUDGET_MS": "5000"}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, checkpoint, "one" if number == 1 else "a list"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    cache = make_asking(server.url, cache_lease=2.0, cache_budget_ms=5000).cache
    router = Router(models={"multilingual": checkpoint}, device="cpu", hooks=cache, defer_load=True)
    router.load("multilingual")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "computing\n"
        holder.kill()
        started = time.monotonic()
        one = {"questions": {"q": {"type": "noul", "instructions": "Is it?"}}, "model": "multilingual"}
        router.predict_batch([{"state": f"held {at}", **one} for at in range(number)])
        assert time.monotonic() - started < 30
    finally:
        holder.kill()
        holder.communicate()
    assert (cache.stats().waits, cache.stats().misses) == (number, number)


def test_over_tls(server: EmbeddedServer, make_asking: Callable[..., Asking]) -> None:
    assert server.port is not None
    with TlsProxy(server.port) as proxy:
        asking = make_asking(f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={CA}", cache_budget_ms=5000)
        asking.warm(["one", "two"])
        assert asking.cache.stats().errors == 0
        stranger = make_asking(f"rediss://localhost:{proxy.port}/0", cache_budget_ms=5000)
        stranger.ask("one")
        assert stranger.cache.stats().hits == 0
        assert stranger.cache.stats().errors >= 1
        asking.cache.close()
        stranger.cache.close()


def test_a_password_that_is_wrong_is_named_nowhere(
    make_asking: Callable[..., Asking], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with EmbeddedServer(options={"requirepass": "hunter2"}) as locked:
        right = make_asking(f"redis://:hunter2@127.0.0.1:{locked.port}/2", cache_budget_ms=5000)
        right.warm(["one"])
        wrong = make_asking(f"redis://:hunter3@127.0.0.1:{locked.port}/2")
        for number in range(8):
            wrong.ask(f"{number}")
        assert wrong.cache.stats().state == "open"
    assert "hunter" not in caplog.text + repr(right.cache) + repr(wrong.cache)
