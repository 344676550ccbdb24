"""What a backend's process goes through: a server that is down, slow or restarted, and thousands of unread results."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import redis
from celery.exceptions import TimeoutError as CeleryTimeout

from producer import watch
from producer.errors import BrokerUnavailable, DeadlineExceeded, LayaError, PredictionFailed
from tests.celery_process import ROOT
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port

QUESTIONS = {"angry": {"type": "noul", "instructions": "The customer is angry."}}


def script(source: str, url: str) -> subprocess.CompletedProcess[str]:
    """A fresh process of a backend, with the server in its environment."""
    return subprocess.run(
        [sys.executable, "-c", f"QUESTIONS = {QUESTIONS!r}\n{source}"],
        cwd=ROOT,
        env={**os.environ, "LAYA_BROKER_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


def test_a_process_that_imports_and_publishes_has_no_torch(server: EmbeddedServer) -> None:
    done = script(
        "import sys, producer\n"
        "producer.submit_prediction.delay('Wo bleibt meine Bestellung?', QUESTIONS)\n"
        "print([name for name in ('torch', 'transformers', 'tokenizers', 'numpy') if name in sys.modules])",
        server.url,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


@pytest.mark.parametrize("way", ["delay", "predict", "apredict"])
def test_a_broker_that_is_down_is_an_error_long_before_the_timeout(way: str) -> None:
    refused_early(f"redis://127.0.0.1:{free_port()}/0", way)


@pytest.mark.parametrize("way", ["delay", "predict", "apredict"])
def test_a_broker_that_is_silent_is_an_error_long_before_the_timeout(way: str, silent: str) -> None:
    refused_early(silent, way)


def refused_early(url: str, way: str) -> None:
    backend = Backend(url)
    calls: dict[str, Callable[[], Any]] = {
        "delay": lambda: backend.submit_prediction.delay("hello", QUESTIONS),
        "predict": lambda: backend.predict("hello", QUESTIONS),
        "apredict": lambda: asyncio.run(backend.apredict("hello", QUESTIONS)),
    }
    try:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            calls[way]()
        assert time.monotonic() - started < 10  # of 30
    finally:
        backend.close()


def test_no_password_of_the_broker_is_in_the_error() -> None:
    backend = Backend(f"redis://:hunter2@127.0.0.1:{free_port()}/0")
    with pytest.raises(BrokerUnavailable) as failure:
        backend.submit_prediction.delay("hello", QUESTIONS)
    assert "hunter2" not in f"{failure.value!r} {failure.value.__cause__!r}"
    backend.close()


def test_results_that_nobody_reads_cost_nothing(backend: Backend, client: redis.Redis) -> None:
    process = psutil.Process()

    def submit(count: int) -> None:
        for _ in range(count):
            backend.submit_prediction.delay("hello", QUESTIONS, model="english")

    submit(2_000)  # what is allocated once is allocated now
    before, connections = process.memory_info().rss, len(client.client_list())
    submit(8_000)
    assert client.pubsub_channels() == []
    assert len(client.client_list()) == connections
    assert process.memory_info().rss - before < 8 * 1024 * 1024
    client.flushall()


def test_a_process_that_leaves_its_results_unread_exits_quietly(server: EmbeddedServer, client: redis.Redis) -> None:
    done = script(
        "import producer\n"
        "kept = [producer.submit_prediction.delay('hello', QUESTIONS) for _ in range(1000)]\n"
        "try:\n    kept[0].get(timeout=0.1)\n"
        "except Exception as error:\n    print(type(error).__name__)",
        server.url,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "TimeoutError", "")
    client.flushall()


def test_closing_an_app_ends_all_it_has_open_and_whoever_waits_hears_of_it(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    backend = Backend(server.url)
    watched = [key for key in client.pubsub_channels() if b"watch" in key]
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):  # a closed app that is used again opens all anew
            waiting = pool.submit(backend.predict, "hello", QUESTIONS, 60)
            channel = backend.results._own
            wait_until(lambda: backend.results._waiting and channel in client.pubsub_channels(), what="the wait")  # noqa: B023
            thread = backend.results._thread
            backend.close()
            with pytest.raises(BrokerUnavailable, match="closed"):
                waiting.result(20)
            assert thread is not None
            assert not thread.is_alive()
            assert [key for key in client.pubsub_channels() if b"watch" in key] == watched
            pool_of_results = backend.app.backend.client.connection_pool
            assert [one._sock for one in pool_of_results._available_connections if one._sock is not None] == []
    client.flushall()


def test_an_app_that_was_never_used_is_closed_without_a_connection() -> None:
    Backend(f"redis://127.0.0.1:{free_port()}/0").close()


def test_a_timeout_of_get_is_celery_s_own(backend: Backend) -> None:
    with pytest.raises(CeleryTimeout):
        backend.submit_prediction.delay("hello", QUESTIONS).get(timeout=0.1)


def test_giving_up_on_many_leaves_no_wait_behind(backend: Backend, client: redis.Redis) -> None:
    async def give_up(count: int) -> None:
        waits = [asyncio.ensure_future(backend.apredict("hello", QUESTIONS, timeout=None)) for _ in range(count)]
        await asyncio.sleep(0.3)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    asyncio.run(give_up(100))
    results = backend.results
    wait_until(lambda: not results._waiting, what="the end of every wait")
    # The one channel of the watch itself stays while its thread does.
    wait_until(lambda: len(client.pubsub_channels()) <= 1, what="the end of the subscriptions")
    client.flushall()


@pytest.fixture
def fragile() -> Iterator[EmbeddedServer]:
    """A server of one test, to be killed."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def fragile_backend(fragile: EmbeddedServer) -> Iterator[Backend]:
    backend = Backend(fragile.url)
    yield backend
    backend.close()


def test_predict_ends_in_time_when_the_server_dies_while_it_waits(
    fragile: EmbeddedServer, fragile_backend: Backend
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fragile_backend.predict, "hello", QUESTIONS, 2.0)
        wait_until(lambda: fragile_backend.results._pubsub, what="the wait")
        fragile.kill()
        with pytest.raises(LayaError) as failure:
            waiting.result(20)
    assert isinstance(failure.value, BrokerUnavailable | DeadlineExceeded)


def test_predict_without_a_timeout_ends_when_the_server_stays_away(
    fragile: EmbeddedServer, fragile_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PATIENCE_SECONDS", 0.5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fragile_backend.predict, "hello", QUESTIONS, None)
        wait_until(lambda: fragile_backend.results._pubsub, what="the wait")
        fragile.kill()
        with pytest.raises(BrokerUnavailable):
            waiting.result(20)


def test_a_wait_outlives_a_restart_of_the_server(
    fragile: EmbeddedServer, fragile_backend: Backend, make_worker: Callable[..., WorkerProcess]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        store = fragile_backend.app.backend
        waiting = fragile_backend.results.expect("the-task", 30)
        wait_until(lambda: fragile_backend.results._pubsub, what="the wait")
        fragile.kill()
        wait_until(lambda: fragile_backend.results.lost, what="the loss")
        fragile.start()
        store.store_result("the-task", {"answers": {}}, "SUCCESS")
        assert pool.submit(waiting.result, 20).result()["result"] == {"answers": {}}


def test_a_result_that_was_there_before_the_wait_is_found(backend: Backend) -> None:
    backend.app.backend.store_result("done-before", 7, "SUCCESS")
    assert backend.results.expect("done-before", 10).result(10)["result"] == 7


def test_a_stored_value_that_is_no_result_fails_its_wait_without_being_shown(
    backend: Backend, client: redis.Redis
) -> None:
    client.set(backend.app.backend.get_key_for_task("nonsense"), "a secret, and no JSON")
    with pytest.raises(PredictionFailed, match="cannot be read") as failure:
        backend.results.expect("nonsense", 10).result(10)
    assert failure.value.cause == "DecodeError"


def test_waits_of_many_threads_end_with_their_own_results(backend: Backend) -> None:
    store, count = backend.app.backend, 200

    def store_all() -> None:
        for number in range(count):
            store.store_result(f"many-{number}", number, "SUCCESS")

    storing = threading.Thread(target=store_all)
    with ThreadPoolExecutor(32) as pool:
        waits = [pool.submit(lambda n=n: backend.results.expect(f"many-{n}", 20).result(20)) for n in range(count)]
        storing.start()
        assert [wait.result()["result"] for wait in waits] == list(range(count))
    storing.join()


def test_the_watch_ends_its_thread_when_nobody_waits(fragile_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_IDLE_SECONDS", 0.1)
    results = fragile_backend.results
    with pytest.raises(DeadlineExceeded):
        fragile_backend.predict("hello", QUESTIONS, timeout=0.1)
    wait_until(lambda: results._thread is None, what="the thread's end")
    fragile_backend.app.backend.store_result("later", 1, "SUCCESS")
    assert results.expect("later", 10).result(10)["result"] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_waits_on_its_own(server: EmbeddedServer, client: redis.Redis) -> None:
    # gunicorn and the like import the backend, perhaps use it, and fork.
    done = script(
        "import os\n"
        "from producer import predict, DeadlineExceeded\n"
        "def ask():\n"
        "    try:\n        predict('hello', QUESTIONS, timeout=0.3)\n"
        "    except DeadlineExceeded:\n        return 7\n"
        "ask()\n"
        "child = os.fork()\n"
        "if child == 0:\n    os._exit(ask())\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ask())",
        server.url,
    )
    assert (done.stdout.strip(), done.returncode) == ("7 7", 0), done.stderr
    client.flushall()
