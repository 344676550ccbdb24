"""What docs/transport.md says: the users that it sets up are enough, and the way back to the stock transport works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import chord

from laya.simulated import write_checkpoint
from producer.errors import CheckpointUnavailable
from tests.integration.conftest import ROOT, Backend, WorkerProcess, wait_until
from tests.integration.wire_app import make_app
from tests.integration.wire_worker import WireWorker
from worker.server import EmbeddedServer

PAGE = (ROOT / "docs" / "transport.md").read_text(encoding="utf-8")
USERS = re.findall(r"^ACL SETUSER .*$", PAGE, flags=re.MULTILINE)


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


def test_the_users_of_the_page_can_do_their_work_and_no_more(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIRE_QUEUE", "laya.english")
    monkeypatch.setenv("WIRE_VISIBILITY", "1")
    with redis.Redis.from_url(server.url) as client:
        for line in USERS:
            client.execute_command(*shlex.split(line.replace(">secret", "'>secret'")))
        url = {name: server.url.replace("//", f"//laya-{name}:secret@") for name in ("producer", "worker")}
        environment = {"WIRE_QUEUE": "laya.english", "WIRE_VISIBILITY": "1"}
        app, operator = make_app(url["producer"]), make_app(server.url)
        with WireWorker(tmp_path, url["worker"], "-c", "2", "-E", **environment) as worker:
            assert app.tasks["echo"].delay(1).get(timeout=20) == 1
            assert app.tasks["second_time"].delay().get(timeout=20) == 1
            adding = [app.tasks["add"].s(n, 1) for n in range(3)]
            assert chord(adding, app.tasks["total"].s()).apply_async().get(timeout=20) == 6
            client.lpush("laya.english", "garbage")
            app.tasks["echo"].apply_async((2,), countdown=2)  # longer than it is visible: it is put back meanwhile
            wait_until(lambda: client.llen("laya.malformed") == 1, what="the malformed message")
            assert operator.control.inspect(timeout=1).ping() == {f"wire@{_host()}": {"ok": "pong"}}
            wait_until(lambda: client.hlen("unacked") == client.llen("laya.english") == 0, what="the countdown's end")
            result = app.tasks["echo"].delay(3)
            assert result.get(timeout=20) == 3
            result.forget()
            assert worker.stop() == 0
        assert [(entry["username"], entry["object"]) for entry in client.acl_log()] == []
        for each in (app, operator):
            each.close()
            each.backend.client.close()


def test_a_worker_that_serves_checkpoints_needs_no_more_than_the_page_gives_it(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    with redis.Redis.from_url(server.url) as client:
        for line in USERS:
            client.execute_command(*shlex.split(line.replace(">secret", "'>secret'")))
        url = {name: server.url.replace("//", f"//laya-{name}:secret@") for name in ("producer", "worker")}
        checkpoints = f"a={write_checkpoint(tmp_path / 'a')},b={write_checkpoint(tmp_path / 'b')},c=/nowhere"
        settings = {"LAYA_BROKER_URL": url["worker"], "LAYA_CHECKPOINTS": checkpoints, "LAYA_MAX_LOADED": "1"}
        backend = Backend(url["producer"], checkpoints=checkpoints)
        worker = WorkerProcess(tmp_path / "worker.log", settings | {"LAYA_DWELL": "0.5"}, "-c", "2").start()
        try:
            question = {"yes": {"type": "noul", "instructions": "Is it so?"}}
            for name in ("a", "b"):
                assert backend.predict("hi", question, model=name)["routing"]["model"] == name
            with pytest.raises(CheckpointUnavailable):
                backend.predict("hi", question, model="c")
            assert worker.terminate() == 0
        finally:
            worker.end()
            backend.close()
        assert [(entry["username"], entry["object"]) for entry in client.acl_log()] == []
        assert not client.exists("laya.workers")


def test_a_producer_of_the_page_cannot_take_messages(server: EmbeddedServer) -> None:
    with redis.Redis.from_url(server.url) as client:
        for line in USERS:
            client.execute_command(*shlex.split(line.replace(">secret", "'>secret'")))
    with redis.Redis.from_url(server.url.replace("//", "//laya-producer:secret@")) as producer:
        for command in (["RPOP", "laya.english"], ["LRANGE", "laya.english", "0", "-1"], ["EVAL", "return 1", "0"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                producer.execute_command(*command)


def test_the_page_s_way_back_to_the_stock_transport(tmp_path: Path) -> None:
    block = re.search(r"```python\n(# stock_wire.*?)```", PAGE, flags=re.DOTALL)
    assert block is not None
    (tmp_path / "stock_wire.py").write_text(block[1])
    code = "import stock_wire; print(stock_wire.app.connection().transport.__class__.__module__)"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert run.stdout.split() == ["kombu.transport.redis"], run.stderr


def _host() -> str:
    from celery.utils.nodenames import gethostname

    return str(gethostname())
