"""What a request holds that kills its worker is nowhere but in its message, also where all that is known is its death.

A worker that logs at DEBUG dies of two requests, one of them in a list of a tenant's, until they are dead letters.
Flower watches. Then everything that an operator, a log or the caller sees is searched for what was in the requests.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from producer.errors import LayaError, PoisonedRequest
from tests.celery_process import ROOT
from tests.faults.deployment import Deployment, dead, deployed
from tests.waiting import wait_until
from worker.dead import DeadLetters
from worker.server import free_port

STATE, QUESTION, OPTION, SECRET = "zqstate", "zqquestion", "zqoption", "zqsecret"
MARKERS = (STATE, QUESTION, OPTION, SECRET)
MOST = 2
LOGIN = ("someone", "a-password")

QUESTIONS = {
    "team": {"type": "choice", "instructions": f"Who? {QUESTION}", "criteria": {"a": OPTION, "b": f"{OPTION} too"}},
}
ALONE, LISTED = f"die SIGSEGV; {STATE}", f"sick; {STATE}"


def found(text: str) -> set[str]:
    """The markers that a text holds, also where it holds them as base64."""
    encoded = {marker: base64.b64encode(marker.encode()).decode()[:8] for marker in MARKERS}
    return {marker for marker in MARKERS if marker in text or encoded[marker] in text}


class Scene:
    """What was seen while the two requests killed, and afterwards."""

    def __init__(self, run: Deployment, home: Path) -> None:
        self.run = run
        self.flower_log = home / "flower.log"
        self.events: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self.entries: list[dict[str, Any]] = []
        self.pages: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self._listening = threading.Event()
        self._receiver: Any = None

    def listen(self) -> None:
        with self.run.backend.app.connection_for_read() as connection:
            self._receiver = self.run.backend.app.events.Receiver(connection, handlers={"*": self.events.append})
            self._receiver.on_consume_ready = lambda *_, **__: self._listening.set()
            self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def play(self, client: httpx.Client) -> None:
        """Let them kill, and look at everything."""
        listener = threading.Thread(target=self.listen)
        listener.start()
        assert self._listening.wait(10)
        wait_until(lambda: _get(client, "/api/workers?refresh=1"), 60, "Flower")
        submit, submit_many = self.run.backend.submit_prediction, self.run.backend.submit_predictions
        single = submit.apply_async((ALONE, QUESTIONS), tenant="acme")
        states = (f"one {STATE}", LISTED, f"two {STATE}")
        many = submit_many.apply_async(([{"state": state, "questions": QUESTIONS} for state in states],), tenant="acme")
        self.entries = many.get(timeout=90)
        self.error = single.get(timeout=60, propagate=False)
        self.ids = {"single": single.id, "listed": f"{many.id}.1"}
        wait_until(lambda: any(one["type"] == "task-failed" for one in self.events), what="the event of the failure")
        wait_until(lambda: '"FAILURE"' in _get(client, "/api/tasks"), what="the failure in Flower")
        for page in ("/api/tasks", "/api/workers", f"/task/{single.id}", f"/task/{many.id}", "/metrics", "/tasks"):
            self.pages[page] = _get(client, page)
        address = re.findall(r"Metrics at (http://\S+)", self.run.log())[-1]
        self.pages["the worker's metrics"] = httpx.get(address).text
        self._receiver.should_stop = True
        listener.join(10)


def _get(client: httpx.Client, page: str) -> str:
    try:
        answer = client.get(page)
    except httpx.TransportError:
        return ""
    return answer.text if answer.status_code == 200 else ""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("silent")
    with deployed(
        home,
        threads=4,
        options=("-l", "DEBUG"),
        LAYA_MAX_DELIVERIES=str(MOST),
        LAYA_TENANT_KEY=f"{SECRET} of sixteen characters",
        LAYA_METRICS_PORT="0",
        LAYA_HOOKS="tests.faults.scope_hooks.Whose,hooks.PrometheusMetrics,hooks.AuditLog,tests.faults.deadly_hooks.Deadly",
    ) as run:
        made, port = Scene(run, home), free_port()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LAYA_", "FLOWER_"))}
        with made.flower_log.open("wb") as log:
            flower = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "worker", "flower"),
                    *("--address=127.0.0.1", f"--port={port}", "--logging=debug"),
                ],
                env=clean | {"LAYA_BROKER_URL": run.server.url, "FLOWER_BASIC_AUTH": ":".join(LOGIN)},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", auth=LOGIN, timeout=20) as client:
                made.play(client)
            yield made
        finally:
            flower.terminate()
            flower.wait(20)


def test_both_are_dead_letters_and_their_neighbours_are_answered(scene: Scene) -> None:
    assert isinstance(scene.error, PoisonedRequest)
    one, listed, two = scene.entries
    assert "answers" in one
    assert "answers" in two
    assert isinstance(LayaError.from_entry(listed), PoisonedRequest)
    assert {letter.id for letter in DeadLetters(scene.run.backend.app).letters()} == set(scene.ids.values())


def test_no_log_holds_a_text_of_them(scene: Scene) -> None:
    assert scene.ids["single"] in scene.run.log()
    assert found(scene.run.log()) == set()
    assert found(scene.flower_log.read_text()) == set()


def test_no_event_holds_a_text_of_them(scene: Scene) -> None:
    assert {event["type"] for event in scene.events} >= {"task-received", "task-failed"}
    assert [event for event in scene.events if found(json.dumps(event))] == []


def test_no_page_of_flower_and_no_metric_holds_a_text_of_them(scene: Scene) -> None:
    assert [page for page, text in scene.pages.items() if not text] == []
    assert {page: markers for page, text in scene.pages.items() if (markers := found(text))} == {}


def test_their_errors_tell_the_caller_ids_and_sizes_alone(scene: Scene) -> None:
    assert scene.error is not None
    shown = [repr(scene.error), str(scene.error), str(vars(scene.error)), json.dumps(scene.entries[1])]
    shown += traceback.format_exception(scene.error)
    assert scene.ids["single"] in shown[1] + shown[2]
    assert found(" ".join(shown)) == set()


def test_the_list_and_what_is_shown_of_a_letter_hold_no_text_unless_it_is_asked_for(scene: Scene) -> None:
    letter_id = scene.ids["listed"]
    printed = [
        dead(scene.run, *arguments).stdout
        for arguments in (("list",), ("list", "--json"), ("show", letter_id), ("show", letter_id, "--json"))
    ]
    assert all("poisoned" in text for text in printed)
    assert found(" ".join(printed)) == set()
    assert found(repr(DeadLetters(scene.run.backend.app).letters())) == set()
    assert found(dead(scene.run, "show", letter_id, "--state").stdout) == {STATE, QUESTION, OPTION}


def test_no_key_of_the_server_but_the_letters_holds_a_text_of_them(scene: Scene) -> None:
    client, held = scene.run.client, {}
    read = {b"string": client.get, b"hash": client.hgetall, b"zset": lambda key: client.zrange(key, 0, -1)}
    read |= {b"list": lambda key: client.lrange(key, 0, -1), b"set": client.smembers}
    read |= {b"none": lambda _: None}  # it has gone since
    for key in client.scan_iter():
        kind = client.type(key)
        if markers := found(f"{key!r} {read[kind](key)!r}"):
            held[key.decode()] = markers
    assert held == {"laya.dead.messages": {STATE, QUESTION, OPTION}}


def test_one_of_a_tenant_s_list_that_is_cured_is_sent_again_and_answered_as_the_tenant_s(scene: Scene) -> None:
    """The signature of the list is worth nothing for a part of it: the letter has one of its own."""
    run, letter_id = scene.run, scene.ids["listed"]
    run.journal.with_suffix(".cured").touch()
    before = len(run.lines("whose"))
    assert dead(run, "retry", letter_id).returncode == 0
    answer = run.backend.submit_prediction.AsyncResult(letter_id).get(timeout=30)
    assert set(answer["answers"]) == {"team"}
    assert [line for line in run.journal.read_text().splitlines() if line.startswith("whose")][before:] == [
        f"whose acme {LISTED}"
    ]


def test_one_that_the_tenant_s_key_does_not_fit_any_more_is_refused_with_the_reason(scene: Scene) -> None:
    run, letter_id = scene.run, scene.ids["single"]
    letters = DeadLetters(run.backend.app)
    found_letter = letters.get(letter_id)
    assert found_letter is not None
    message = json.loads(found_letter[1])
    message["headers"]["laya_tenant_signature"] = "1:" + "0" * 64
    letters.add(found_letter[0], message, keep=10, seconds=100)
    assert dead(run, "retry", letter_id).returncode == 0
    with pytest.raises(LayaError, match="its signature does not match: give backends and workers the same"):
        run.backend.submit_prediction.AsyncResult(letter_id).get(timeout=30)
