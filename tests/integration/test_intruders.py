"""Messages of somebody who may write to the queue and keeps to no rule: nothing that he names is opened, loaded or run.

Each is put on the list as it is, past every check of a producer, in front of a real worker.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.exceptions import NotRegistered

from laya.simulated import write_checkpoint
from producer.errors import InvalidRequest, LayaError, UnknownCheckpoint
from tests.celery_process import ROOT
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.app import app as worker_app
from worker.server import EmbeddedServer

NOUL = {"q": {"type": "noul", "instructions": "It is urgent."}}
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


class Intruder:
    """Writes to the queue; asks as a backend what became of it."""

    def __init__(self, client: redis.Redis, backend: Backend, worker: WorkerProcess) -> None:
        self.client, self.backend, self.worker = client, backend, worker

    def put(self, body: Any = None, *, content_type: str = "application/json", **headers: Any) -> str:
        """Put a message on the queue; the id of its task."""
        id_ = str(uuid.uuid4())
        raw = (
            body
            if isinstance(body, bytes)
            else json.dumps([["hello", NOUL], {}, {}] if body is None else body).encode()
        )
        message = {
            "body": base64.b64encode(raw).decode(),
            "content-encoding": "binary" if isinstance(body, bytes) else "utf-8",
            "content-type": content_type,
            "headers": {"id": id_, "task": "laya.submit_prediction", "lang": "py", **headers},
            "properties": {
                "correlation_id": id_,
                "reply_to": "laya.english",
                "delivery_tag": str(uuid.uuid4()),
                "delivery_info": {"exchange": "", "routing_key": "laya.english"},
                "body_encoding": "base64",
                "priority": 0,
            },
        }
        self.client.lpush("laya.english", json.dumps(message))
        self.client.lpush("laya.bell.laya.english", 1)  # else it is found a second later
        return id_

    def error_of(self, id_: str) -> BaseException:
        error: BaseException = self.backend.submit_prediction.AsyncResult(id_).get(timeout=20, propagate=False)
        return error

    def still_answers(self) -> bool:
        assert self.worker.process is not None
        return self.worker.process.poll() is None and "answers" in self.backend.predict("hello", NOUL, model="english")


@pytest.fixture(scope="module")
def intruder(
    server: EmbeddedServer, client: redis.Redis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Intruder]:
    home = tmp_path_factory.mktemp("intruder")
    checkpoints = f"english={write_checkpoint(home / 'english', pass_ms=1)}"
    worker = WorkerProcess(
        home / "worker.log",
        {"LAYA_BROKER_URL": server.url, "LAYA_CHECKPOINTS": checkpoints, "LAYA_PRELOAD": "english"}
        | {"LAYA_MAX_DELIVERIES": "1"},
        *("-c", "4", "-E"),
    )
    backend = Backend(server.url, checkpoints=checkpoints)
    try:
        yield Intruder(client, backend, worker.start())
    finally:
        worker.end()
        backend.close()


NAMES = [
    *("/etc/passwd", "../english", "./english", "~/x", "english/../x", "org/model", "org/model:sub@main", "laya.small"),
    *("file:///etc/passwd", "http://127.0.0.1:1/x", "english\x00", "", " ", "small", "x" * 10_000),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_not_registered_opens_nothing(name: str, intruder: Intruder) -> None:
    error = intruder.error_of(intruder.put([["hello", NOUL], {"model": name}, {}]))
    assert type(error) in {UnknownCheckpoint, InvalidRequest}
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    "option",
    ["hooks", "on_predict_start", "agent_kwargs", "models", "revision", "token", "device", "callback", "__class__"],
)
def test_an_option_that_nobody_offers_is_refused(option: str, intruder: Intruder) -> None:
    error = intruder.error_of(intruder.put([["hello", NOUL], {option: "os.system"}, {}]))
    assert isinstance(error, InvalidRequest)
    assert option in str(error)


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self._path,)


@pytest.mark.parametrize(
    "content_type",
    ["application/x-python-serialize", "application/data", "application/x-yaml", "application/x-msgpack", "pickle", ""],
)
def test_what_is_not_json_is_never_decoded(content_type: str, intruder: Intruder, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    yaml = f"!!python/object/apply:os.mkdir ['{trap}']".encode()
    for body in (pickle.dumps([["hello", Bomb(trap)], {}, {}]), yaml):
        assert isinstance(intruder.error_of(intruder.put(body, content_type=content_type)), LayaError)
    assert not trap.exists()


def test_a_pickle_inside_of_json_is_text(intruder: Intruder, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    hidden = base64.b64encode(pickle.dumps(Bomb(trap))).decode()
    for value in ({"__type__": "pickle", "__value__": hidden}, {"py/reduce": [{"py/type": "os.mkdir"}, [str(trap)]]}):
        intruder.error_of(intruder.put([[value, NOUL], {}, {}]))
    assert not trap.exists()


@pytest.mark.parametrize("task", ["os.system", "worker.app.prepare", "builtins.eval", "laya.submit_prediction.run"])
def test_a_task_that_is_none_of_ours_is_not_run(task: str, intruder: Intruder) -> None:
    assert isinstance(intruder.error_of(intruder.put(task=task)), NotRegistered)


def test_a_worker_has_the_tasks_that_the_page_lists_and_no_others() -> None:
    assert all(f"`{name}`" in PAGE for name in worker_app.tasks if name.startswith("celery."))
    assert {name for name in worker_app.tasks if not name.startswith("celery.")} == {
        "laya.submit_prediction",
        "laya.submit_predictions",
    }


@pytest.mark.parametrize("name", ["celery.map", "celery.starmap", "celery.chunks"])
def test_celery_s_own_tasks_run_no_task_that_is_not_registered(name: str, intruder: Intruder) -> None:
    signature = {"task": "os.system", "args": [], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": False}
    error = intruder.error_of(intruder.put([[], {"task": signature, "it": [["id"]]}, {}], task=name))
    assert isinstance(error, BaseException)
    assert intruder.still_answers()


def test_a_link_publishes_by_name_and_runs_nothing_here(intruder: Intruder) -> None:
    link = {"task": "os.system", "args": [], "kwargs": {}, "options": {"queue": "elsewhere"}, "subtask_type": None}
    intruder.error_of(intruder.put([["hello", NOUL], {}, {"callbacks": [link], "errbacks": None}]))
    wait_until(lambda: intruder.client.llen("elsewhere") == 1, what="what the link publishes")
    intruder.client.delete("elsewhere")


FORGED = "x\n[2026-01-01 00:00:00,000: CRITICAL/MainProcess] forged\x1b[31m\x1b]0;title\x07\u202e"

HEADERS: list[dict[str, Any]] = [
    {"shadow": FORGED},
    {"argsrepr": FORGED, "kwargsrepr": FORGED, "laya_schema": 1},
    {"origin": FORGED, "root_id": "r", "parent_id": "p"},
    {"task": FORGED},
    {"id": FORGED},
    {"root_id": FORGED},
    {"timelimit": "soon"},
    {"timelimit": [-1, {"x": 1}]},
    {"retries": 10**30},
    {"retries": "many"},
    {"eta": "0001-01-01T00:00:00+14:00"},
    {"eta": FORGED},
    {"expires": "9999-12-31T23:59:59-14:00"},
    {"expires": 10**400},
    {"expires": "0001-01-01T00:00:00"},
    {"ignore_result": "yes"},
    {"stamped_headers": ["a"], "stamps": {"a": [1]}},
    {"stamped_headers": 7, "stamps": 7},
    {"laya_schema": "one"},
    {"laya_schema": [1]},
    {"laya_tenant": FORGED, "laya_tenant_signature": FORGED},
    {"group": FORGED, "group_index": "first"},
    {"replaced_task_nesting": -1},
    {"compression": "zlib"},
]

EMBEDS: list[Any] = [
    {"chord": {"task": "os.system"}, "callbacks": None, "errbacks": None},
    {"callbacks": "x", "errbacks": 7},
    {"callbacks": [{"task": FORGED}], "errbacks": [{"task": FORGED}]},
    {"chain": [FORGED]},
    {"chord": FORGED},
    7,
    None,
]


def test_headers_of_every_kind_stop_nothing_and_forge_nothing(intruder: Intruder) -> None:
    for headers in HEADERS:
        intruder.put(**headers)
    for embed in EMBEDS:
        intruder.put([["hello", NOUL], {}, embed])
    wait_until(lambda: not intruder.client.exists("laya.english"), what="the end of the queue")
    assert intruder.still_answers()
    log = intruder.worker.text()
    assert "forged" in log
    assert not [line for line in log.splitlines() if line.startswith("[2026-01-01")]
    assert "\x1b]" not in log
    assert "\u202e" not in log
    assert "\x07" not in log


def test_an_eta_in_a_thousand_years_keeps_nobody_waiting(intruder: Intruder) -> None:
    ids = [intruder.put(eta="3000-01-01T00:00:00") for _ in range(8)]  # twice as many as there are threads
    assert intruder.still_answers()
    intruder.backend.app.control.revoke(ids)


def test_an_operator_s_answer_holds_no_control_character(intruder: Intruder) -> None:
    inspect = intruder.backend.app.control.inspect(timeout=5, limit=1)
    asked: dict[str, Callable[[], Any]] = {"scheduled": inspect.scheduled, "reserved": inspect.reserved}
    for name, ask in asked.items():
        assert "\\u001b" not in json.dumps(ask()), name
