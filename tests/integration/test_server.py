"""The embedded server: up at once, alone on its port, and never longer there than whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis

from tests.celery_process import ROOT
from tests.waiting import wait_until
from worker.server import EmbeddedServer, ServerError, free_port

PARENT = """
import sys
from worker.server import EmbeddedServer
server = EmbeddedServer()
server.start()
print(server.pid, server._home, flush=True)
sys.stdin.read()
"""


def parent() -> tuple[subprocess.Popen[str], int, Path]:
    """A process with a server of its own, the server's pid and directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid, home = process.stdout.readline().split()
    return process, int(pid), Path(home)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_it_answers_when_it_has_started_and_is_gone_when_it_has_stopped() -> None:
    with EmbeddedServer() as server:
        pid = server.pid
        with redis.Redis.from_url(server.url) as client:
            assert client.set("a", "b")
    assert is_gone(pid)
    with redis.Redis.from_url(server.url) as client, pytest.raises(redis.ConnectionError):
        client.ping()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_dies_with_its_parent_however_the_parent_dies(number: signal.Signals) -> None:
    process, pid, home = parent()
    process.send_signal(number)
    process.communicate(timeout=20)
    wait_until(lambda: is_gone(pid), what="the server's end")
    wait_until(lambda: not home.exists(), what="the end of its directory")


def test_it_dies_with_a_parent_that_ends_in_an_orderly_way() -> None:
    process, pid, home = parent()
    process.communicate("", timeout=20)
    assert process.returncode == 0
    wait_until(lambda: is_gone(pid) and not home.exists(), what="the server's end")


def test_a_ctrl_c_in_the_terminal_does_not_reach_it() -> None:
    with EmbeddedServer() as server:
        assert os.getsid(server.pid) != os.getsid(os.getpid())


def test_a_killed_server_starts_again_on_its_port() -> None:
    with EmbeddedServer() as server:
        port = server.port
        server.kill()
        server.start()
        assert server.port == port
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()


def test_what_was_written_is_there_after_a_crash_when_it_keeps_its_changes(tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path, appendonly=True, options={"appendfsync": "always"}) as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("a", "b")
        server.kill()
        server.start()
        with redis.Redis.from_url(server.url) as client:
            assert client.get("a") == b"b"


def test_it_never_drops_a_key_for_want_of_memory() -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_it_listens_on_the_loopback_interface_only() -> None:
    with EmbeddedServer() as server:
        listening = [one.laddr.ip for one in psutil.Process(server.pid).net_connections() if one.status == "LISTEN"]
    assert listening == ["127.0.0.1"]


def test_a_taken_port_is_an_error_that_shows_the_log() -> None:
    with EmbeddedServer() as first, pytest.raises(ServerError, match="bind"):
        EmbeddedServer(port=first.port).start()


def test_an_option_it_does_not_know_is_an_error_that_shows_the_log() -> None:
    with pytest.raises(ServerError, match="no-such-option"):
        EmbeddedServer(options={"no-such-option": "1"}).start()


def test_a_free_port_is_free() -> None:
    with EmbeddedServer(port=free_port()) as server, redis.Redis.from_url(server.url) as client:
        assert client.ping()
