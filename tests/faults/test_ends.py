"""How workers end: asked to while they start, or their broker is away, or with a suspect at work; twice; not let in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laya.simulated import write_checkpoint
from tests.faults.deployment import answers, deployed
from tests.integration.commandline import CommandLine, laya_workers
from tests.integration.conftest import WorkerProcess
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port

LONG_S = 120.0
"""Longer than anybody waits for a worker's end."""

PASSWORD = "pa$$word-nobody-may-read"

Launch = Callable[..., WorkerProcess]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Starts workers by name, and does not wait for them; each loads for `load_s`."""
    launched: list[WorkerProcess] = []

    def make(name: str, url: str, load_s: float = 0.0, **settings: str) -> WorkerProcess:
        environment = {**loading(tmp_path / name, load_s), "LAYA_BROKER_URL": url, **settings}
        launched.append(WorkerProcess(tmp_path / f"{name}.log", environment, "-c", "2").launch())
        return launched[-1]

    yield make
    for worker in launched:
        worker.kill()


def loading(home: Path, load_s: float) -> dict[str, str]:
    """Settings of a worker that loads for so long before it takes anything."""
    checkpoint = write_checkpoint(home / "checkpoint", pass_ms=1.0, row_ms=0.0, load_s=load_s)
    return {
        "LAYA_CHECKPOINTS": f"english={checkpoint}",
        "LAYA_PRELOAD": "english",
        "LAYA_HOOKS": "tests.faults.deadly_hooks.Deadly",
        "JOURNAL": str(home / "journal"),
    }


def has_hooks(home: Path) -> bool:
    """Whether a worker has made its hooks, which is what it does before it loads."""
    return (home / "journal.deaths").exists()


def test_a_worker_that_is_asked_to_end_while_it_loads_ends_at_once_and_in_order(
    tmp_path: Path, launch: Launch, server: EmbeddedServer
) -> None:
    asked = {number.name: number for number in (signal.SIGTERM, signal.SIGINT)}
    workers = {name: launch(name, server.url, LONG_S) for name in asked}
    for name, worker in workers.items():
        wait_until(lambda name=name: has_hooks(tmp_path / name), 60, "the worker's hooks")
        os.kill(worker.pid, asked[name])
    for worker in workers.values():
        assert worker.exit_code() == 0
        assert "asked to end before it has started: nothing was taken" in worker.text()
        assert "Traceback" not in worker.text()


def test_up_says_at_once_that_it_stops_also_while_its_workers_load(tmp_path: Path) -> None:
    command = CommandLine(tmp_path, "up", "--no-flower", "--port", str(free_port()), **loading(tmp_path, LONG_S))
    try:
        wait_until(lambda: has_hooks(tmp_path), 60, "the worker's hooks")
        command.process.send_signal(signal.SIGINT)
        wait_until(lambda: "SIGINT: stopping" in command.output, what="the word on it")
        assert command.ends(30) == 0, command.output
        command.leaves_nothing(5)
    finally:
        command.clean_up()


def test_a_worker_that_starts_while_its_broker_is_away_waits_and_ends_in_order_when_asked(launch: Launch) -> None:
    server = EmbeddedServer(port=free_port())
    url = f"redis://127.0.0.1:{server.port}/0"
    stays, *asked = launch("stays", url), launch("SIGTERM", url), launch("SIGINT", url)
    for worker in (stays, *asked):
        wait_until(lambda worker=worker: "Cannot connect to" in worker.text(), 60, "the worker's wait")
        assert worker.alive
    for number, worker in zip((signal.SIGTERM, signal.SIGINT), asked, strict=True):
        os.kill(worker.pid, number)
        assert worker.exit_code() == 0
    with server:
        stays.until_ready()
        os.kill(stays.pid, signal.SIGINT)
        assert stays.exit_code() == 0
    assert all("Traceback" not in worker.text() for worker in (stays, *asked))


def test_an_end_in_order_or_in_haste_is_no_death_of_the_suspect_that_was_at_work(tmp_path: Path) -> None:
    with deployed(tmp_path, workers=1, threads=4, LAYA_MAX_DELIVERIES="2") as run:
        worker, suspect = run.workers[0], run.ask("wait; suspect")

        def at_work(times: int) -> subprocess.Popen[bytes]:
            wait_until(lambda: len(run.lines("begin")) == times, 40, f"its beginning {times}")
            assert worker.process is not None
            return worker.process

        at_work(1).kill()
        process = at_work(2)  # as a suspect, and for the last time if its end were counted
        process.terminate()
        wait_until(lambda: "Warm shutdown" in worker.text(), what="the end's beginning")
        process.terminate()
        assert process.wait(20) == 1
        process = at_work(3)
        process.terminate()
        wait_until(lambda: worker.text().count("Warm shutdown") == 2, what="the end's beginning")
        run.journal.with_suffix(".cured").touch()
        assert process.wait(20) == 0
        assert "answers" in answers({"suspect": suspect}, 20)["suspect"]
        wait_until(run.settled, what="the acknowledgement")
        assert len(run.lines("begin")) == 3
        assert run.client.keys("laya.delivered.*") == []
        assert not run.client.exists("laya.dead")


def test_who_is_not_let_in_ends_with_one_line_that_names_the_setting_and_no_password(
    launch: Launch, server: EmbeddedServer
) -> None:
    with EmbeddedServer(options={"requirepass": "another"}) as locked:
        host = locked.url.partition("//")[2]
        logins = {
            "wrong": f"redis://:{PASSWORD}@{host}",
            "unknown": f"redis://nobody:{PASSWORD}@{host}",
            "none": locked.url,
        }
        workers = {name: launch(name, url) for name, url in logins.items()}
        results = launch("results", server.url, LAYA_RESULT_URL=logins["wrong"])
        for worker in (*workers.values(), results):
            assert worker.exit_code(60) == os.EX_CONFIG
            assert PASSWORD not in worker.text()
            assert "Traceback" not in worker.text()
        line = r"CRITICAL/MainProcess\] (LAYA_\w+): the server at (\S+) refuses this login: (.+)\. Set it to redis://"
        told = {name: re.findall(line, worker.text()) for name, worker in {**workers, "results": results}.items()}
        refused = "invalid username-password pair or user is disabled"
        assert told == {
            "wrong": [("LAYA_BROKER_URL", f"redis://:**@{host}", refused)],
            "unknown": [("LAYA_BROKER_URL", f"redis://nobody:**@{host}", refused)],
            "none": [("LAYA_BROKER_URL", locked.url, "Authentication required")],
            "results": [("LAYA_RESULT_URL", f"redis://:**@{host}", refused)],
        }
        for setting, *command in (("LAYA_BROKER_URL", "status"), ("LAYA_CACHE_URL", "cache", "stats")):
            ended = laya_workers(*command, **{setting: logins["wrong"]})
            assert (ended.returncode, ended.stdout) == (2, "")
            assert ended.stderr.startswith(f"error: {setting}: the server at redis://:**@{host} refuses this login")
            assert PASSWORD not in ended.stderr
            assert len(ended.stderr.splitlines()) == 1
