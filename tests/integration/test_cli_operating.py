"""What an operator does to running workers: look at them, load, unload; and workers that obey nobody."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from laya.simulated import write_checkpoint
from producer.app import PredictionApp
from producer.settings import ProducerSettings
from tests.integration.commandline import ROOT, CommandLine, laya_workers
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.overview import ask_all
from worker.presets import TRIAGE
from worker.server import EmbeddedServer

LOAD_S = 0.8

Order = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("checkpoints")
    made = {name: write_checkpoint(home / name, load_s=LOAD_S) for name in ("english", "multilingual", "papers")}
    return ",".join(f"{name}={path}" for name, path in made.items()) + ",broken=/no/where"


@pytest.fixture(scope="module")
def worker(make_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    """`worker0`: obeys, and keeps `english`."""
    return make_worker("-c", "4", LAYA_PRELOAD="english", LAYA_MAX_LOADED="2", LAYA_DWELL="1").start()


@pytest.fixture(scope="module")
def deaf(make_worker: Callable[..., WorkerProcess], worker: WorkerProcess) -> WorkerProcess:
    """`worker1`: answers questions, obeys nobody."""
    return make_worker("-c", "2", LAYA_REMOTE_CONTROL="0").start()


@pytest.fixture(scope="module")
def run(server: EmbeddedServer, checkpoints: str, worker: WorkerProcess) -> Callable[..., Any]:
    def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        settings = {"LAYA_BROKER_URL": server.url, "LAYA_CHECKPOINTS": checkpoints, **environment}
        return laya_workers(*arguments, **settings)

    return command


@pytest.fixture(scope="module")
def app(server: EmbeddedServer, checkpoints: str) -> Iterator[PredictionApp]:
    made = PredictionApp(ProducerSettings(broker_url=server.url, checkpoints=checkpoints))
    yield made
    made.close()


@pytest.fixture(scope="module")
def order(app: PredictionApp, worker: WorkerProcess) -> Callable[..., dict[str, Any]]:
    """Sends a control command to one worker; its answer."""
    host = wait_until(lambda: next(iter(ask_all(app, "ping", {}, 1.0, limit=1)), None)).partition("@")[2]
    del worker

    def ask(command: str, arguments: Mapping[str, Any] | None = None, name: str = "worker0") -> dict[str, Any]:
        node = f"{name}@{host}"
        return wait_until(lambda: ask_all(app, command, arguments or {}, 5.0, [node]).get(node), what=f"{name} answers")

    return ask


def test_load_waits_until_the_checkpoint_is_there(run: Callable[..., Any], order: Order) -> None:
    done = run("load", "papers", "--worker", "worker0")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^✓ worker0@\S+  papers loaded in \d+\.\d s", done.stdout)
    assert "papers" in order("resident")["resident"]


def test_a_load_of_what_is_in_memory_says_so_and_loads_nothing(run: Callable[..., Any], order: Order) -> None:
    before = order("resident")["loads"]
    done = run("load", "english", "--worker", "worker0")
    assert done.returncode == 0, done.stderr
    assert "in memory already" in done.stdout
    assert order("resident")["loads"] == before


def test_the_worker_takes_and_answers_while_it_loads(order: Order, backend: Backend) -> None:
    order("unload", {"name": "papers"})
    wait_until(lambda: "papers" not in order("resident")["resident"])
    assert order("load", {"name": "papers"})["ok"] == "loading"
    assert order("resident")["loading"].keys() == {"papers"}  # the thread that takes messages is free to tell so
    backend.predict("text", TRIAGE, model="english")
    assert "papers" not in order("resident")["resident"]
    wait_until(lambda: "papers" in order("resident")["resident"])


def test_a_load_that_fails_tells_its_reason(run: Callable[..., Any]) -> None:
    failed = run("load", "broken", "--worker", "worker0")
    assert failed.returncode == 1
    assert "/no/where" in failed.stdout
    assert "not done on 1 of 1" in failed.stderr
    assert "failed to load broken" in run("status", COLUMNS="200").stdout


def test_only_registered_names_are_loaded(run: Callable[..., Any], order: Order) -> None:
    refused = run("load", "/etc/passwd", "--worker", "worker0")
    assert refused.returncode == 2
    assert "unknown checkpoint '/etc/passwd'" in refused.stdout
    assert order("load", {"name": "someone/else"})["type"] == "UnknownCheckpoint"


def test_what_is_pinned_is_unloaded_by_force_alone(run: Callable[..., Any], order: Order) -> None:
    refused = run("unload", "english", "--worker", "worker0")
    assert refused.returncode == 1
    assert "pinned by LAYA_PRELOAD" in refused.stdout
    assert "english" in order("resident")["resident"]
    forced = run("unload", "english", "--worker", "worker0", "--force")
    assert forced.returncode == 0, forced.stderr
    assert "english unloaded" in forced.stdout
    order("load", {"name": "english"})
    wait_until(lambda: "english" in order("resident")["resident"])


def test_a_worker_that_is_not_there_is_named_beside_those_that_are(run: Callable[..., Any]) -> None:
    missing = run("load", "english", "--worker", "nobody")
    assert missing.returncode == 3
    assert "no worker called 'nobody' answers: there is worker0@" in missing.stderr


def test_celerys_own_commands_do_the_same(server: EmbeddedServer, checkpoints: str, worker: WorkerProcess) -> None:
    del worker
    environment = {**os.environ, "LAYA_BROKER_URL": server.url, "LAYA_CHECKPOINTS": checkpoints}
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "worker", "control", "load", "english"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "resident" in done.stdout


def test_status_shows_the_worker_and_every_checkpoint(run: Callable[..., Any]) -> None:
    shown = run("status")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert "1 worker · " in lines[0]
    assert any(line.startswith("worker0") and "english*" in line for line in lines)
    assert {"english", "multilingual", "papers", "broken"} <= {line.partition(" ")[0] for line in lines}


def test_status_as_json_has_what_its_page_lists(run: Callable[..., Any]) -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    facts = json.loads(run("status", "--json").stdout)
    names = {*facts, *facts["workers"][0], *facts["queues"][0], *facts["totals"]}
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def test_status_shows_what_waits_and_for_how_long(run: Callable[..., Any], app: PredictionApp) -> None:
    with app.connection_for_write() as connection:
        client = connection.default_channel.client
        client.lpush("laya.elsewhere", json.dumps({"body": ""}))
    shown = run("status", "--json", LAYA_CHECKPOINTS="elsewhere=/no/where")
    (queue,) = [queue for queue in json.loads(shown.stdout)["queues"] if queue["checkpoint"] == "elsewhere"]
    assert queue["waiting"] == 1
    assert queue["oldest"] >= 0
    assert queue["served_by"] == []


def test_status_is_followed_until_ctrl_c(server: EmbeddedServer, checkpoints: str, tmp_path: Path) -> None:
    settings = {"LAYA_BROKER_URL": server.url, "LAYA_CHECKPOINTS": checkpoints}
    command = CommandLine(tmp_path, "status", "--watch", "--json", **settings)
    try:
        wait_until(lambda: command.output.count("\n") >= 2, what="two looks")
        command.process.send_signal(signal.SIGINT)
        assert command.ends(20) == 0
    finally:
        command.clean_up()
    assert all(json.loads(line)["totals"]["workers"] == 1 for line in command.output.splitlines())


def test_submit_says_at_once_that_no_worker_serves_the_checkpoint(run: Callable[..., Any], checkpoints: str) -> None:
    refused = run("submit", "text", "--preset", "triage", "--model", "more", LAYA_CHECKPOINTS=f"{checkpoints},more=/x")
    assert refused.returncode == 3
    assert "no worker serves more: those that answer serve broken, english" in refused.stderr


def test_a_worker_with_remote_control_off_answers_questions_alone(
    run: Callable[..., Any], order: Order, deaf: WorkerProcess
) -> None:
    assert order("resident", name="worker1")["pid"] == deaf.pid
    orders: dict[str, dict[str, Any]] = {
        "load": {"name": "english"},
        "unload": {"name": "english"},
        "shutdown": {},
        "pool_restart": {},
        "pool_shrink": {"n": 1},
        "cancel_consumer": {"queue": "laya.english"},
        "revoke": {"task_id": "x"},
        "rate_limit": {"task_name": "laya.submit_prediction", "rate_limit": "1/h"},
    }
    for command, arguments in orders.items():
        assert order(command, arguments, "worker1")["type"] == "TurnedOff", command
    assert "turned off on this worker by LAYA_REMOTE_CONTROL" in run("load", "english", "--worker", "worker1").stdout
    assert deaf.process is not None
    assert deaf.process.poll() is None
    assert order("ping", name="worker1") == {"ok": "pong"}


def test_a_frozen_worker_is_shown_by_what_it_announced(run: Callable[..., Any], worker: WorkerProcess) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        seen = json.loads(run("status", "--json", "--timeout", "0.3").stdout)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    (silent,) = seen["silent"]
    assert silent["node"].startswith("worker0@")
    assert "english" in silent["holds"]
