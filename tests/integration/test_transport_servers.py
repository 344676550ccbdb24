"""The wire on servers of every kind: prefixed keys, TLS, restarts, loading, full memory, replicas."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from producer.app import celery_settings
from producer.settings import ProducerSettings
from producer.transport_name import transport_for
from tests.integration.tls_proxy import CA, TlsProxy
from tests.integration.wire import LONG_S, Loop, connect, connected, publish
from tests.integration.wire_app import close_app, make_app
from tests.integration.wire_worker import WireWorker
from tests.waiting import wait_until
from worker.server import EmbeddedServer

pytestmark = pytest.mark.usefixtures("emptied")


# --- keys ---


def test_with_a_prefix_every_key_has_it(server: EmbeddedServer, client: redis.Redis) -> None:
    options: dict[str, Any] = {"global_keyprefix": "mine:", "visibility_timeout": 1, "unacked_restore_interval": 0.1}
    seen: set[bytes] = set()

    def look() -> bool:
        seen.update(client.keys("*"))
        return True

    with connected(server.url, **options) as connection:
        publish(connection, "jobs", *range(70), priority=3)
        publish(connection, "jobs", "zero")
        look()
        assert client.llen("mine:laya.bell.jobs") == 64
        client.lpush("mine:jobs", "garbage")
        assert connection.default_channel.basic_get("jobs").decode() == "zero"
    crashed = Loop(server.url, "jobs", prefetch=5, **options)
    crashed.got(5)
    look()
    crashed.crash()
    with Loop(server.url, "jobs", polling_interval=LONG_S, **options) as loop:
        loop.until(lambda: look() and len(loop.held) >= 71)
        for message in loop.held:
            message.ack()
        loop.until(lambda: client.hlen("mine:unacked") == client.zcard("mine:unacked_index") == 0)
        loop.idle()
        publish(loop.connection, "jobs", "rung")
        loop.until(lambda: loop.bodies[-1] == "rung")
        loop.held[-1].requeue()
        loop.until(lambda: len(loop.held) >= 73)
        look()
    assert {key for key in seen if not key.startswith(b"mine:")} == set()
    expected = {b"mine:jobs", b"mine:unacked", b"mine:unacked_index", b"mine:laya.malformed", b"mine:laya.bell.jobs"}
    assert expected <= seen


# --- TLS ---


@pytest.fixture
def proxy(server: EmbeddedServer) -> Iterator[TlsProxy]:
    assert server.port is not None
    with TlsProxy(server.port) as running:
        yield running


def test_tls_carries_tasks_and_results(proxy: TlsProxy, tmp_path: Path) -> None:
    url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={CA}"
    app = make_app(url)
    with WireWorker(tmp_path, url, "-c", "2") as worker:
        assert app.tasks["echo"].delay("secret").get(timeout=20) == "secret"
        assert worker.terminate() == 0
    close_app(app)
    assert proxy.connections >= 4  # of the worker and of us, for messages and for results


def test_a_certificate_that_nobody_vouches_for_is_refused(proxy: TlsProxy) -> None:
    url = f"rediss://127.0.0.1:{proxy.port}/0"
    with pytest.raises(OperationalError, match="certificate verify failed"):
        connect(url, transport_for(url)).ensure_connection(max_retries=1, interval_start=0)
    assert proxy.connections == 0


def test_an_unverified_server_must_be_asked_for(proxy: TlsProxy) -> None:
    url = f"rediss://127.0.0.1:{proxy.port}/0?ssl_cert_reqs=none"
    with connected(url, transport_for(url)) as connection:
        publish(connection, "jobs", "one")
    assert proxy.connections > 0


def test_a_tls_url_never_speaks_plain(server: EmbeddedServer) -> None:
    url = server.url.replace("redis://", "rediss://")
    connection = connect(url, transport_for(url), socket_timeout=0.5, socket_connect_timeout=0.5)
    with pytest.raises(OperationalError):
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_settings_verify_certificates_on_both_ways() -> None:
    settings = celery_settings(ProducerSettings(broker_url="rediss://broker/0", result_url="rediss://results/0"))
    assert settings["broker_use_ssl"] == settings["redis_backend_use_ssl"] == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    plain = celery_settings(ProducerSettings(broker_url="redis://broker/0"))
    assert plain["broker_use_ssl"] is plain["redis_backend_use_ssl"] is None


# --- what a URL says ---


@pytest.mark.parametrize("scheme", ["redis", "rediss", "sentinel"])
def test_a_connection_shows_as_its_url_says(scheme: str) -> None:
    connection = connect(f"{scheme}://:secret@broker.example:7000/2", transport_for(f"{scheme}://"))
    assert connection.as_uri() == f"{scheme}://:**@broker.example:7000/2"
    assert connection.clone().transport_cls == transport_for(f"{scheme}://")
    assert connection.transport.driver_type == "redis"


@pytest.mark.parametrize(
    ("url", "what"), [("amqp://broker", "scheme 'amqp'"), ("redis://one;redis://two", "one server")]
)
def test_a_url_of_another_kind_is_refused(url: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        transport_for(url)


def test_several_servers_are_refused_by_the_transport_too() -> None:
    connection = connect("redis://one;redis://two")
    with pytest.raises(ValueError, match="one server"):
        _ = connection.transport


def test_turning_records_off_is_refused(server: EmbeddedServer) -> None:
    connection = connect(server.url, ack_emulation=False)
    with pytest.raises(ValueError, match="ack_emulation"):
        connection.connect()
    connection.close()


# --- a server in trouble ---


def test_a_full_server_is_emptied(server: EmbeddedServer, client: redis.Redis) -> None:
    with connected(server.url) as connection, Loop(server.url, "jobs", prefetch=20) as loop:
        loop.idle()
        loop.consumer.cancel()
        publish(connection, "jobs", *("x" * 10_000 for _ in range(20)))
        client.lpush("jobs", "garbage")
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        try:
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                publish(connection, "jobs", "one more")
            loop.consumer.consume()
            loop.got(20)
            loop.held[0].requeue()
            loop.got(21)
            for message in loop.held[1:]:
                message.ack()
            loop.until(lambda: client.hlen("unacked") == client.llen("jobs") == 0)
        finally:
            client.config_set("maxmemory", 0)
        publish(connection, "jobs", "one more")
        assert loop.got(22)[-1] == "one more"


def test_a_publisher_is_refused_by_a_replica_with_a_connection_error(
    server: EmbeddedServer, client: redis.Redis
) -> None:
    with EmbeddedServer() as primary, connected(server.url) as connection:
        publish(connection, "jobs", "before")
        client.replicaof(primary.host, primary.port)
        try:
            with pytest.raises(connection.connection_errors, match="no primary any more"):
                publish(connection, "jobs", "meanwhile")
        finally:
            client.replicaof("NO", "ONE")


class Trouble:
    """A server of one's own that things happen to, a worker on it, and a producer."""

    def __init__(self, server: EmbeddedServer, home: Path) -> None:
        self.server = server
        self.client = redis.Redis.from_url(server.url)
        self.worker = WireWorker(home, server.url, "-c", "4")
        self.app = make_app(server.url)

    def echo(self, value: Any) -> Any:
        return self.app.tasks["echo"].delay(value).get(timeout=60)

    def settled(self) -> bool:
        return self.client.hlen("unacked") == self.client.zcard("unacked_index") == 0

    def close(self) -> None:
        close_app(self.app)
        self.client.close()


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trouble]:
    home = tmp_path_factory.mktemp("trouble")
    slow = {"key-load-delay": "500"}  # microseconds for each command of its journal
    with EmbeddedServer(directory=home / "data", appendonly=True, options={"appendfsync": "always", **slow}) as server:
        made = Trouble(server, home)
        with made.worker:
            yield made
        made.close()


def test_a_worker_survives_a_time_as_a_replica(trouble: Trouble) -> None:
    assert trouble.echo("before") == "before"
    with EmbeddedServer() as primary:
        trouble.client.replicaof(primary.host, primary.port)
        wait_until(lambda: "Moved" in trouble.worker.text(), what="the worker's notice")
        trouble.client.replicaof("NO", "ONE")
    assert trouble.echo("promoted") == "promoted"


def test_a_worker_survives_a_killed_server_and_repeats_nothing_that_runs(trouble: Trouble) -> None:
    trouble.client.delete("runs")
    results = [trouble.app.tasks["note"].delay(1.5) for _ in range(8)]
    wait_until(lambda: trouble.client.llen("runs") == 4, what="the first tasks")
    trouble.server.kill()
    trouble.server.start()
    assert [result.get(timeout=60) for result in results] == [result.id for result in results]
    wait_until(trouble.settled, what="the acknowledgements")
    assert trouble.client.llen("runs") == 8


def test_a_worker_waits_for_a_server_that_loads(trouble: Trouble) -> None:
    with trouble.client.pipeline(transaction=False) as pipe:
        for number in range(10_000):  # five seconds; it looks for questions every 1,024 commands
            pipe.set("ballast", number)
        pipe.execute()
    trouble.server.stop()
    trouble.server.start()
    wait_until(lambda: "loading the dataset" in trouble.worker.text(), what="the worker's attempt to connect")
    wait_until(lambda: not trouble.client.info("persistence")["loading"], what="the loading's end")
    assert trouble.echo("loaded") == "loaded"
    wait_until(trouble.settled, what="the acknowledgements")


def test_a_worker_starts_on_a_full_server_and_empties_it(trouble: Trouble, tmp_path: Path) -> None:
    results = [trouble.app.tasks["echo"].apply_async((n,), queue="full") for n in range(10)]
    trouble.client.config_set("maxmemory", trouble.client.info("memory")["used_memory"] // 2)
    try:
        with WireWorker(tmp_path, trouble.server.url, "-c", "4", "-Q", "full"):
            assert [result.get(timeout=30) for result in results] == list(range(10))
            wait_until(trouble.settled, what="the acknowledgements")
    finally:
        trouble.client.config_set("maxmemory", 0)


# --- busy servers ---


def test_a_ping_that_a_busy_server_refuses_ends_no_worker(server: EmbeddedServer, client: redis.Redis) -> None:
    with connected(server.url) as connection, redis.Redis.from_url(server.url) as busy:
        channel = connection.default_channel
        channel.subclient.subscribe("anything")
        wait_until(lambda: not channel.subclient.connection.can_read(0.1) or channel._receive(), what="its answer")
        client.config_set("busy-reply-threshold", 10)
        script = threading.Thread(target=run_for_ever, args=(busy,))
        script.start()
        try:
            wait_until(lambda: is_busy(client), what="a busy server")
            channel.subclient.connection.send_command("PING", check_health=False)
            assert channel._receive() is False
        finally:
            client.script_kill()
            script.join()
            client.config_set("busy-reply-threshold", 5000)


def run_for_ever(client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="killed"):
        client.eval("while true do end", 0)


def is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False
