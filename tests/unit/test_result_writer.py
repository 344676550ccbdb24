"""Results on their way to a real server: what is stored, in which order, and who learns of an error."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from celery import Celery, states

from producer.app import celery_settings
from producer.result_writer import ResultWriter
from producer.settings import ProducerSettings
from tests.waiting import wait_until
from worker.server import EmbeddedServer


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(options={"appendonly": "yes", "appendfsync": "always"}) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as connection:
        connection.flushall()
        yield connection


@pytest.fixture
def writer(client: redis.Redis) -> ResultWriter:
    return ResultWriter(lambda: client)


def meta(status: str, result: Any = None) -> str:
    """A result as Celery stores it."""
    return json.dumps({"status": status, "result": result, "traceback": None, "children": [], "task_id": "t"})


class Held:
    """A client whose round trips wait until they are let go, and are counted."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.trips = 0
        self.go = threading.Event()

    def pipeline(self, **options: Any) -> Any:
        self.trips += 1
        assert self.go.wait(10)
        return self._client.pipeline(**options)


def test_a_result_is_stored_when_the_call_returns(client: redis.Redis, writer: ResultWriter) -> None:
    writer.write("k", meta("SUCCESS", 1), 100)
    assert json.loads(client.get("k"))["result"] == 1
    assert 90 < client.ttl("k") <= 100


def test_a_result_can_be_kept_for_ever(client: redis.Redis, writer: ResultWriter) -> None:
    writer.write("k", meta("SUCCESS"), 0)
    assert client.ttl("k") == -1


def test_subscribers_are_told(client: redis.Redis, writer: ResultWriter) -> None:
    with client.pubsub(ignore_subscribe_messages=True) as listening:
        listening.subscribe("k")
        assert listening.get_message(timeout=5) is None  # subscribed
        writer.write("k", meta("SUCCESS", "told"), 100)
        notice = listening.get_message(timeout=5)
    assert json.loads(notice["data"])["result"] == "told"


@pytest.mark.parametrize("later", ["SUCCESS", "FAILURE", "REVOKED", "RETRY"])
def test_a_stored_success_is_never_overwritten(later: str, client: redis.Redis, writer: ResultWriter) -> None:
    first = meta("SUCCESS", "first")
    for stored in (first, json.dumps({"task_id": "t", "status": "SUCCESS"}), json.dumps(json.loads(first), indent=1)):
        client.set("k", stored)
        writer.write("k", meta(later, "later"), 100)
        assert client.get("k") == stored.encode()


@pytest.mark.parametrize("stored", ["FAILURE", "REVOKED", "RETRY", "STARTED", "PENDING"])
def test_anything_but_a_success_gives_way_to_a_result(stored: str, client: redis.Redis, writer: ResultWriter) -> None:
    client.set("k", meta(stored))
    writer.write("k", meta("SUCCESS", "late"), 100)
    assert json.loads(client.get("k"))["result"] == "late"


@pytest.mark.parametrize("stored", ["", "no JSON", "[1]", '"SUCCESS"', '{"status": null}', "\xff"])
def test_what_is_no_result_gives_way_too(stored: str, client: redis.Redis, writer: ResultWriter) -> None:
    client.set("k", stored)
    writer.write("k", meta("FAILURE"), 100)
    assert json.loads(client.get("k"))["status"] == "FAILURE"


def test_progress_is_seen(client: redis.Redis, writer: ResultWriter) -> None:
    writer.write_progress("k", lambda: meta("STARTED"), 100)
    wait_until(lambda: client.exists("k"), what="the progress")
    assert json.loads(client.get("k"))["status"] == "STARTED"
    assert 90 < client.ttl("k") <= 100


@pytest.mark.parametrize("outcome", ["SUCCESS", "FAILURE", "REVOKED"])
def test_progress_overwrites_no_outcome(outcome: str, client: redis.Redis, writer: ResultWriter) -> None:
    client.set("k", meta(outcome))
    writer.write_progress("k", lambda: meta("STARTED"), 100)
    writer.write_progress("other", lambda: meta("STARTED"), 100)
    wait_until(lambda: client.exists("other"))
    assert json.loads(client.get("k"))["status"] == outcome


def test_the_progress_of_a_task_that_has_ended_is_not_even_made(client: redis.Redis, writer: ResultWriter) -> None:
    made = []
    writer.write_progress("k", lambda: made.append("k") or meta("STARTED"), 100)
    writer.write("k", meta("RETRY"), 100)
    writer.write_progress("other", lambda: meta("STARTED"), 100)
    wait_until(lambda: client.exists("other"))
    assert made == []
    assert json.loads(client.get("k"))["status"] == "RETRY"


def test_progress_on_its_way_is_stored_before_the_result_that_follows(client: redis.Redis) -> None:
    held = Held(client)
    writer = ResultWriter(lambda: held)
    writer.write_progress("k", lambda: meta("STARTED"), 100)
    wait_until(lambda: held.trips == 1)  # it is being sent
    with ThreadPoolExecutor() as threads:
        written = threads.submit(writer.write, "k", meta("RETRY"), 100)
        held.go.set()
        written.result(10)
    assert json.loads(client.get("k"))["status"] == "RETRY"


def test_results_that_come_while_the_line_is_busy_go_together(client: redis.Redis) -> None:
    held = Held(client)
    writer = ResultWriter(lambda: held)
    client.script_flush()
    with ThreadPoolExecutor(32) as threads:
        first = threads.submit(writer.write, "first", meta("SUCCESS"), 100)
        wait_until(lambda: held.trips == 1)
        others = [threads.submit(writer.write, f"k{n}", meta("SUCCESS", n), 100) for n in range(31)]
        wait_until(lambda: len(writer._line) == 31)
        held.go.set()
        for future in (first, *others):
            future.result(10)
    assert held.trips <= 4  # one for the first, one for all others, and each again where the server had no script
    assert [json.loads(client.get(f"k{n}"))["result"] for n in range(31)] == list(range(31))


def test_many_threads_lose_nothing(client: redis.Redis, writer: ResultWriter) -> None:
    def work(thread: int) -> None:
        for n in range(100):
            writer.write_progress(f"{thread}-{n}", lambda: meta("STARTED"), 100)
            writer.write(f"{thread}-{n}", meta("SUCCESS", [thread, n]), 100)
            assert json.loads(client.get(f"{thread}-{n}"))["result"] == [thread, n]

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(work, range(32)))
    assert client.dbsize() == 3200


def test_a_flushed_script_is_sent_again(client: redis.Redis, writer: ResultWriter) -> None:
    for n in range(3):
        client.script_flush()
        writer.write(f"k{n}", meta("SUCCESS"), 100)
    assert client.dbsize() == 3


def test_an_error_of_one_result_is_its_own(client: redis.Redis) -> None:
    held = Held(client)
    writer = ResultWriter(lambda: held)
    client.lpush("broken", 1)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(writer.write, "first", meta("SUCCESS"), 100)
        wait_until(lambda: held.trips == 1)
        broken = threads.submit(writer.write, "broken", meta("SUCCESS"), 100)
        good = threads.submit(writer.write, "good", meta("SUCCESS"), 100)
        wait_until(lambda: len(writer._line) == 2)
        held.go.set()
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            broken.result(10)
        first.result(10)
        good.result(10)
    assert client.exists("first", "good") == 2


def test_a_lost_connection_reaches_every_thread_and_is_over_with_the_server_s_return() -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url, retry=None) as client:
        writer = ResultWriter(lambda: client)
        writer.write("before", meta("SUCCESS"), 100)
        server.kill()
        with ThreadPoolExecutor(16) as threads:
            lost = [threads.submit(writer.write, f"k{n}", meta("SUCCESS"), 100) for n in range(16)]
            errors = [future.exception(20) for future in lost]
        assert all(isinstance(error, redis.ConnectionError) for error in errors)
        assert len({id(error) for error in errors}) == 16
        server.start()
        writer.write("after", meta("SUCCESS"), 100)
        assert client.exists("after")


class NotCopied(Exception):
    """An error that cannot be copied."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def test_an_error_that_cannot_be_copied_is_an_error_all_the_same() -> None:
    def client() -> Any:
        raise NotCopied("a", "b")

    writer = ResultWriter(client)
    for _ in range(2):  # and the line is free again
        with pytest.raises(NotCopied):
            writer.write("k", meta("SUCCESS"), 100)


def test_results_are_stored_when_memory_is_full(client: redis.Redis, writer: ResultWriter) -> None:
    client.set("ballast", "x" * 1_000_000)
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used // 2)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", "x")
        writer.write("k", meta("SUCCESS"), 100)
        assert client.exists("k")
    finally:
        client.config_set("maxmemory", 0)


def test_a_server_that_became_a_replica_is_a_connection_error_and_the_next_try_connects_anew(
    client: redis.Redis, writer: ResultWriter, server: EmbeddedServer
) -> None:
    with EmbeddedServer() as primary:
        client.replicaof(primary.host, primary.port)
        try:
            before = client.client_id()
            with pytest.raises(redis.ConnectionError, match="no primary any more"):
                writer.write("k", meta("SUCCESS"), 100)
            assert client.client_id() != before
        finally:
            client.replicaof("NO", "ONE")
    writer.write("k", meta("SUCCESS"), 100)
    assert client.exists("k")


@pytest.fixture
def app(server: EmbeddedServer) -> Iterator[Celery]:
    made = Celery("results", set_as_current=False, fixups=[])
    made.conf.update(celery_settings(ProducerSettings(broker_url=server.url, result_ttl=60)))
    yield made
    made.backend.close()
    made.close()


@pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")  # Celery's own store calls it
def test_the_store_s_layout_is_celery_s_own(app: Celery, client: redis.Redis, server: EmbeddedServer) -> None:
    stock = Celery("stock", set_as_current=False, fixups=[], backend=server.url)
    error = ValueError("as asked")
    for store, reader in ((app.backend, stock.backend), (stock.backend, app.backend)):
        client.flushall()
        store.store_result("good", {"a": [1]}, states.SUCCESS)
        store.store_result("bad", error, states.FAILURE)
        assert reader.get_result("good") == {"a": [1]}
        assert isinstance(reader.get_result("bad"), ValueError)
        assert reader.get_state("bad") == "FAILURE"
        assert client.ttl("celery-task-meta-good") > 0
    stock.backend.client.connection_pool.disconnect()
    stock.close()


def test_a_store_that_is_away_for_a_moment_is_tried_again(app: Celery, server: EmbeddedServer) -> None:
    app.backend.store_result("before", 1, states.SUCCESS)
    port = server.port
    server.kill()
    restarted = threading.Timer(0.5, server.start)
    restarted.start()
    app.backend.store_result("meanwhile", 2, states.SUCCESS)
    restarted.join()
    assert server.port == port
    assert app.backend.get_result("meanwhile") == 2
