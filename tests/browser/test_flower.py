"""Flower as `celery -A worker flower` starts it: behind a password, tasks that read well, no text of a state."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from producer.errors import PredictionFailed
from tests.browser.conftest import picture
from tests.celery_process import ROOT
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port

LOGIN = ("admin", "a long password")
SECRET = "4111-1111-1111-1111"
QUESTIONS = {
    "team": {"type": "choice", "instructions": SECRET, "criteria": {"billing": SECRET, "support": "broken things"}},
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
}


def flower(url: str, port: int, **environment: str) -> subprocess.Popen[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAYA_", "FLOWER_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "worker", "flower", "--address=127.0.0.1", f"--port={port}"],
        env=clean | {"LAYA_BROKER_URL": url} | environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.fixture(scope="module")
def dashboard(
    server: EmbeddedServer, make_worker: Callable[..., WorkerProcess], backend: Backend
) -> Iterator[httpx.Client]:
    """Flower, after it has seen two answers and a failure."""
    make_worker("-c", "2", LAYA_HOOKS="queue_hooks.Trouble", LAYA_PRELOAD="english").start()
    port = free_port()
    process = flower(server.url, port, FLOWER_BASIC_AUTH=":".join(LOGIN))
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", auth=LOGIN, timeout=10) as client:

        def tasks() -> list[dict[str, Any]]:
            try:
                return list(client.get("/api/tasks").json().values())
            except (httpx.TransportError, ValueError):
                assert process.poll() is None, process.stdout.read().decode() if process.stdout else ""
                return []

        def ends() -> list[str]:
            """Of the tasks that it has seen from their beginning: of one that was under way it knows no arguments."""
            return [task["state"] for task in tasks() if task["args"]]

        def sees_everything() -> bool:
            backend.predict(SECRET, QUESTIONS, model="english")
            return "SUCCESS" in ends()

        wait_until(sees_everything, 60, "Flower's first task")
        with pytest.raises(PredictionFailed):
            backend.predict("raise RuntimeError", QUESTIONS, model="english")
        backend.submit_predictions.delay([{"state": SECRET, "questions": QUESTIONS, "model": "english"}] * 3).get(30)
        wait_until(lambda: set(ends()) == {"SUCCESS", "FAILURE"}, 30, "both ends of a task, and no other state")
        yield client
    process.terminate()
    process.communicate(timeout=20)


def test_nobody_looks_without_the_password(dashboard: httpx.Client) -> None:
    for path in ("/", "/workers", "/tasks", "/api/tasks", "/api/workers"):
        for auth in (None, ("admin", "wrong")):
            with httpx.Client(base_url=dashboard.base_url, auth=auth) as stranger:
                assert stranger.get(path).status_code == 401, path


def test_without_a_login_it_does_not_start(server: EmbeddedServer) -> None:
    process = flower(server.url, free_port())
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert b"FLOWER_BASIC_AUTH" in output
    assert b"Traceback" not in output


def test_a_person_logs_in_and_sees_a_worker_and_how_tasks_ended(browser: Browser, dashboard: httpx.Client) -> None:
    context = browser.new_context(
        http_credentials={"username": LOGIN[0], "password": LOGIN[1]}, viewport={"width": 1400, "height": 800}
    )
    page = context.new_page()
    page.goto(f"{dashboard.base_url}/workers")
    expect(page.locator("table tbody")).to_contain_text("worker0@")
    picture(page, "flower-workers")
    page.goto(f"{dashboard.base_url}/tasks")
    table = page.locator("#tasks-table tbody")
    expect(table).to_contain_text("SUCCESS")
    expect(table).to_contain_text("FAILURE")
    expect(table).to_contain_text("prediction")
    expect(table).to_contain_text("english (text of 19 characters; team, urgent)")
    expect(table).to_contain_text("team=")
    assert SECRET not in page.content()
    picture(page, "flower-tasks")
    expect(table.locator("tr", has_text="FAILURE")).to_contain_text("PredictionFailed")
    table.locator("tr", has_text="FAILURE").locator("a[href*='/task/']").first.click()
    expect(page.locator("body")).to_contain_text("PredictionFailed")
    assert SECRET not in page.content()
    context.close()


def test_no_answer_of_its_interface_holds_a_text(dashboard: httpx.Client) -> None:
    for path in ("/api/tasks", "/api/workers", "/metrics", "/tasks", "/workers"):
        assert SECRET not in dashboard.get(path).text, path


def test_pictures_of_it_are_in_the_docs() -> None:
    pictures = Path(__file__).resolve().parents[2] / "docs" / "pictures"
    assert {"flower-workers.png", "flower-tasks.png"} <= {path.name for path in pictures.glob("*.png")}
