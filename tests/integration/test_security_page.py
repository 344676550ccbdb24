"""What docs/security.md says of users, TLS and passwords, tried on real servers with exactly the users of the page.

A worker with every part switched on, a backend and Flower, all over TLS, each as its own user; the cache on a server of
its own. The server's log of refusals must stay empty while they work.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from celery import chord, group

from laya.simulated import write_checkpoint
from producer.errors import BrokerUnavailable, CheckpointUnavailable
from tests.celery_process import ROOT
from tests.integration.conftest import Backend, WorkerProcess
from tests.integration.tls_proxy import CA, TlsProxy
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
USERS = {line.split()[2]: line for line in re.findall(r"^ACL SETUSER .*$", PAGE, flags=re.MULTILINE)}
NOUL = {"q": {"type": "noul", "instructions": "It is urgent."}}
LOGIN = ("admin", "a long password")


def set_user(client: redis.Redis, name: str) -> None:
    client.execute_command(*shlex.split(re.sub(r"(>secret|\([^)]*\))", r"'\1'", USERS[name])))


class Deployment:
    """Two servers behind TLS, and who works with them."""

    def __init__(self, home: Path) -> None:
        self.broker, self.cache = EmbeddedServer(), EmbeddedServer()
        self.broker.start()
        self.cache.start()
        assert self.broker.port is not None
        assert self.cache.port is not None
        self.broker_tls, self.cache_tls = TlsProxy(self.broker.port), TlsProxy(self.cache.port)
        self.admin, self.cache_admin = (redis.Redis.from_url(one.url) for one in (self.broker, self.cache))
        for name in ("laya-producer", "laya-worker", "laya-flower"):
            set_user(self.admin, name)
        set_user(self.cache_admin, "laya-cache")
        for client in (self.admin, self.cache_admin):
            client.execute_command("ACL", "SETUSER", "default", ">operator")
            client.connection_pool.connection_kwargs["password"] = "operator"
        made = [f"{name}={write_checkpoint(home / name, pass_ms=1)}" for name in ("english", "multilingual")]
        self.checkpoints = ",".join([*made, "typed-decisions=/nowhere"])
        common = {"LAYA_CHECKPOINTS": self.checkpoints, "LAYA_VISIBILITY_TIMEOUT": "3"}
        self.worker = WorkerProcess(
            home / "worker.log",
            {
                **common,
                "LAYA_BROKER_URL": self.url("laya-worker"),
                "LAYA_CACHE_URL": self.url("laya-cache", self.cache_tls.port),
                "LAYA_CACHE_LOCAL_BYTES": "1000000",
                "LAYA_HOOKS": "hooks.SkipCache,queue_hooks.Trouble",
                "LAYA_MAX_DELIVERIES": "2",
                "LAYA_MAX_LOADED": "1",
                "LAYA_DWELL": "0.5",
            },
            *("-c", "4", "-E"),
        )
        self.flower_port = free_port()
        self.flower_log = home / "flower.log"
        self._flower_environment = common | {
            "LAYA_BROKER_URL": self.url("laya-flower"),
            "FLOWER_BASIC_AUTH": ":".join(LOGIN),
        }
        self.backend = Backend(self.url("laya-producer"), checkpoints=self.checkpoints, visibility_timeout=3)

    def url(self, user: str, port: int | None = None, *, host: str = "127.0.0.1", password: str = "secret") -> str:
        return f"rediss://{user}:{password}@{host}:{port or self.broker_tls.port}/0?ssl_ca_certs={CA}"

    def flower(self) -> subprocess.Popen[bytes]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAYA_", "FLOWER_"))}
        with self.flower_log.open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "worker", "flower"),
                    *("--address=127.0.0.1", f"--port={self.flower_port}"),
                ],
                env=clean | self._flower_environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def close(self) -> None:
        self.backend.close()
        for each in (self.admin, self.cache_admin):
            each.close()
        for proxy in (self.broker_tls, self.cache_tls):
            proxy.__exit__(None, None, None)
        self.broker.stop()
        self.cache.stop()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment"))
    flower = made.flower()
    try:
        made.worker.start()
        _work(made)
        _look(made, flower)
        yield made
        assert made.worker.terminate() == 0
        assert not made.admin.exists("laya.workers")
        assert refusals(made.admin) == refusals(made.cache_admin) == set()
    finally:
        flower.terminate()
        flower.wait(20)
        made.worker.end()
        made.close()


def _work(made: Deployment) -> None:
    """Whatever a backend and a worker do with the servers."""
    backend = made.backend
    submit = backend.submit_prediction
    for _ in range(2):  # the second is the cache's
        assert "answers" in backend.predict("hello", NOUL, model="english")
    assert "answers" in backend.predict("hello", NOUL, model="multilingual")
    assert len(backend.submit_predictions.delay([{"state": "x", "questions": NOUL}] * 3).get(timeout=20)) == 3
    assert len(group(submit.s(text, NOUL) for text in "ab").apply_async().get(timeout=20)) == 2
    assert chord([submit.s(text, NOUL) for text in "cd"], submit.s(NOUL)).apply_async().get(timeout=20)
    assert submit.apply_async(("hello", NOUL), link=submit.s(NOUL), priority=9).get(timeout=20)
    forgotten = submit.delay("e", NOUL)
    forgotten.get(timeout=20)
    forgotten.forget()
    assert submit.apply_async(("later", NOUL), countdown=4).get(timeout=30)  # longer than it is visible
    made.admin.lpush("laya.english", "garbage", '{"body": 1}')
    backend.app.send_task("no.such.task", queue="laya.english")
    wait_until(lambda: made.admin.llen("laya.malformed") == 2, what="the malformed messages")
    wait_until(lambda: made.admin.exists("laya.dead"), what="the dead letter")
    with pytest.raises(CheckpointUnavailable):
        backend.predict("hello", NOUL, model="typed-decisions")


def _look(made: Deployment, flower: subprocess.Popen[bytes]) -> None:
    """Whatever Flower does."""
    with httpx.Client(base_url=f"http://127.0.0.1:{made.flower_port}", auth=LOGIN, timeout=20) as client:

        def knows_the_worker() -> bool:
            assert flower.poll() is None, made.flower_log.read_text()
            try:
                return bool(client.get("/api/workers?refresh=1").json())
            except (httpx.TransportError, ValueError):
                return False

        wait_until(knows_the_worker, 30, "Flower's look at the worker")
        made.backend.predict("seen", NOUL, model="english")
        wait_until(lambda: client.get("/api/tasks").json(), what="Flower's first task")
        assert client.get("/broker").status_code == 200
        lengths = {
            queue["name"]: queue["messages"] for queue in client.get("/api/queues/length").json()["active_queues"]
        }
        assert lengths["laya.english"] == 0
        client.get("/worker/" + next(iter(client.get("/api/workers").json())))


def refusals(client: redis.Redis) -> set[tuple[str, str, str]]:
    """What the server refused; a wrong password, which tests below try, is none of it."""
    log: Any = client.acl_log()
    return {(entry["username"], entry["reason"], entry["object"]) for entry in log if entry["reason"] != "auth"}


def test_the_users_of_the_page_are_enough(deployment: Deployment) -> None:
    assert refusals(deployment.admin) == set()
    assert refusals(deployment.cache_admin) == set()


def test_the_cache_answered_as_its_user(deployment: Deployment) -> None:
    assert [key for key in deployment.cache_admin.scan_iter() if not key.startswith(b"laya.cache")] == []
    assert deployment.cache_admin.dbsize() > 0
    assert "NOPERM" not in deployment.worker.text()


FORBIDDEN: dict[str, list[list[str]]] = {
    "laya-producer": [
        ["RPOP", "laya.english"],
        ["LRANGE", "laya.english", "0", "-1"],
        ["DEL", "laya.english"],
        ["LTRIM", "laya.english", "1", "0"],
        ["HGETALL", "unacked"],
        ["LPUSH", "unacked", "x"],
        ["LPUSH", "laya.malformed", "x"],
        ["HGETALL", "laya.dead.messages"],
        ["GET", "laya.claim.english"],
        ["SET", "celery-task-meta-1", "x"],
        ["KEYS", "*"],
        ["SCAN", "0"],
        ["FLUSHALL"],
        ["CONFIG", "GET", "*"],
        ["EVAL", "return 1", "0"],
        ["PUBLISH", "/0.celery.pidbox", "x"],
        ["PUBLISH", "celery-task-meta-1", "x"],
        ["PSUBSCRIBE", "*"],
        ["SUBSCRIBE", "/0.celery.pidbox"],
        ["PSUBSCRIBE", "/0.celeryev/*"],
        ["MGET", "laya.cache::x"],
    ],
    "laya-worker": [
        ["GET", "somebody.else"],
        ["LPUSH", "celery", "x"],
        ["KEYS", "*"],
        ["FLUSHDB"],
        ["CONFIG", "SET", "maxmemory", "1"],
        ["ACL", "LIST"],
        ["PUBLISH", "news", "x"],
        ["SHUTDOWN"],
        ["REPLICAOF", "NO", "ONE"],
        ["EVAL", "return redis.call('GET', 'somebody.else')", "0"],
    ],
    "laya-flower": [
        ["LPUSH", "laya.english", "x"],
        ["RPOP", "laya.english"],
        ["LRANGE", "laya.english", "0", "-1"],
        ["HGETALL", "unacked"],
        ["HGET", "unacked", "x"],
        ["EVAL", "return redis.call('HGETALL', 'unacked')", "0"],
        ["GET", "celery-task-meta-1"],
        ["DEL", "laya.english"],
        ["LRANGE", "laya.malformed", "0", "-1"],
        ["HGET", "laya.dead.messages", "x"],
        ["SUBSCRIBE", "celery-task-meta-1"],
        ["KEYS", "*"],
        ["FLUSHALL"],
    ],
    "laya-cache": [
        ["LPUSH", "laya.english", "x"],
        ["LRANGE", "laya.english", "0", "-1"],
        ["GET", "celery-task-meta-1"],
        ["HGETALL", "unacked"],
        ["PUBLISH", "/0.celery.pidbox", "x"],
        ["EVAL", "return redis.call('DEL', 'laya.english')", "0"],
        ["KEYS", "*"],
        ["FLUSHALL"],
    ],
}


def test_every_user_of_the_page_is_tried() -> None:
    assert USERS.keys() == FORBIDDEN.keys()


@pytest.fixture(scope="module")
def empty() -> Iterator[EmbeddedServer]:
    """A server that knows the users, and where nothing is lost."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        for name in USERS:
            set_user(client, name)
        yield server


@pytest.mark.parametrize(
    ("user", "command"), [(user, command) for user, commands in FORBIDDEN.items() for command in commands], ids=str
)
def test_what_a_user_must_not_do_is_refused(user: str, command: list[str], empty: EmbeddedServer) -> None:
    with redis.Redis.from_url(empty.url.replace("//", f"//{user}:secret@")) as client:
        with pytest.raises(redis.exceptions.ResponseError) as refusal:
            client.execute_command(*command)
        error = refusal.value
        assert isinstance(error, redis.exceptions.NoPermissionError) or "ACL failure in script" in str(error)


# --- TLS and passwords ---


def test_everything_went_over_tls(deployment: Deployment) -> None:
    assert deployment.broker_tls.connections >= 5
    assert deployment.cache_tls.connections >= 1


def failure_of(url: str) -> BrokerUnavailable:
    backend = Backend(url)
    try:
        with pytest.raises(BrokerUnavailable) as failure:
            backend.predict("hello", NOUL, timeout=5, model="english")
    finally:
        backend.app.close()
    return failure.value


def test_a_server_of_another_authority_is_refused(deployment: Deployment) -> None:
    url = deployment.url("laya-producer").partition("?")[0]
    assert "certificate verify failed" in str(failure_of(url))


def test_a_server_of_another_name_is_refused(deployment: Deployment) -> None:
    # It leads to the same server, and is not what the certificate is for.
    assert "certificate verify failed" in str(failure_of(deployment.url("laya-producer", host="0.0.0.0")))


def test_a_wrong_password_is_refused_and_not_repeated(deployment: Deployment) -> None:
    error = failure_of(deployment.url("laya-producer", password="zqwrong"))
    assert "password" in str(error)
    assert "zqwrong" not in f"{error!r} {error.__cause__!r}"


def test_a_worker_that_must_not_enter_says_so_and_shows_no_password(deployment: Deployment, tmp_path: Path) -> None:
    worker = WorkerProcess(
        tmp_path / "stranger.log",
        {
            "LAYA_BROKER_URL": deployment.url("laya-worker", password="zqwrong"),
            "LAYA_CHECKPOINTS": deployment.checkpoints,
        },
    ).launch()
    try:
        wait_until(lambda: re.search("WRONGPASS|invalid username-password", worker.text()), 30, "the refusal")
        assert "zqwrong" not in worker.text()
    finally:
        worker.end()


def test_flower_shows_no_result_and_lets_nobody_in_without_the_password(deployment: Deployment) -> None:
    url = f"http://127.0.0.1:{deployment.flower_port}"
    result = deployment.backend.submit_prediction.delay("hello", NOUL, model="english")
    result.get(timeout=20)
    with httpx.Client(base_url=url, auth=LOGIN, timeout=10) as client:
        wait_until(lambda: result.id in client.get("/api/tasks").json(), what="the task in Flower")
    for path in ("/", "/tasks", "/api/tasks", f"/api/task/result/{result.id}", "/api/worker/shutdown/x"):
        assert httpx.get(url + path).status_code in {401, 405}, path
    assert httpx.post(f"{url}/api/worker/shutdown/worker").status_code == 401
    for path in ("/healthcheck", "/metrics"):
        assert httpx.get(url + path).status_code == 200
    assert refusals(deployment.admin) == set()
