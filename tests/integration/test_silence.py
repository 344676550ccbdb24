"""What a request holds, and what a URL keeps secret, is nowhere but in the queue and in the result.

A worker that logs at DEBUG answers, fails, refuses, drops and loses its server; then everything that an operator can
see is searched for markers that were in the states, the questions, the options and the passwords.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from celery import Celery

from laya.simulated import write_checkpoint
from producer.errors import BrokerUnavailable, InvalidRequest, LayaError, PredictionFailed
from producer.request import PredictionRequest
from producer.settings import ProducerSettings
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.logs import Discreet
from worker.redaction import escaped, places, told
from worker.server import EmbeddedServer

STATE, QUESTION, OPTION, PASSWORD = "zqstate", "zqquestion", "zqoption", "zqpassword"
MARKERS = (STATE, QUESTION, OPTION, PASSWORD)

QUESTIONS = {
    "team": {"type": "choice", "instructions": f"Who? {QUESTION}", "criteria": {"a": OPTION, "b": f"{OPTION} too"}},
    "level": {"type": "score", "instructions": QUESTION, "criteria": [f"low {OPTION}", f"high {OPTION}"]},
}


def found(text: str) -> set[str]:
    """The markers that a text holds, also where it holds them as base64."""
    encoded = {marker: base64.b64encode(marker.encode()).decode()[:8] for marker in MARKERS}
    return {marker for marker in MARKERS if marker in text or encoded[marker] in text}


class Scene:
    """A server with a password, a worker at DEBUG, and everything that was seen of them."""

    def __init__(self, home: Path) -> None:
        checkpoint = write_checkpoint(home / "english", pass_ms=1)
        self.server = EmbeddedServer(options={"requirepass": PASSWORD})
        self.server.start()
        self.url = self.server.url.replace("//", f"//:{PASSWORD}@")
        settings = {"LAYA_CHECKPOINTS": f"english={checkpoint}", "LAYA_VISIBILITY_TIMEOUT": "5"}
        self.worker = WorkerProcess(
            home / "worker.log",
            {
                **settings,
                "LAYA_BROKER_URL": self.url,
                "LAYA_CACHE_URL": self.server.url.replace("//", f"//:{PASSWORD}cache@"),
                "LAYA_TENANT_KEY": f"{PASSWORD}tenant",
                "LAYA_METRICS_PORT": "0",
                "LAYA_HOOKS": "talkative_hooks.Lenient,hooks.SkipCache,hooks.PrometheusMetrics,hooks.AuditLog,"
                "talkative_hooks.Loud",
            },
            *("-c", "4", "-E", "-l", "DEBUG"),
        )
        self.client = redis.Redis.from_url(self.url)
        self.backend = Backend(self.url, checkpoints=f"english={checkpoint}", visibility_timeout=5)
        self.stranger = Celery("stranger", set_as_current=False, fixups=[])
        self.stranger.conf.update(broker_url=self.url, result_backend=self.url)
        self.events: list[dict[str, Any]] = []
        self.errors: list[BaseException] = []
        self.replies: dict[str, Any] = {}
        self.keys = ""
        self._receiver: Any = None
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(10)
        self.worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.end()
        self._receiver.should_stop = True
        self._thread.join(10)
        self.backend.close()
        self.stranger.close()
        self.client.close()
        self.server.stop()

    def _listen(self) -> None:
        with self.backend.app.connection_for_read() as connection:
            self._receiver = self.backend.app.events.Receiver(connection, handlers={"*": self.events.append})
            self._receiver.on_consume_ready = lambda *_, **__: self._listening.set()
            self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def ask(self, state: Any, questions: Any = QUESTIONS, **options: Any) -> Any:
        """The answer, or the error, which is kept."""
        try:
            return self.backend.predict(state, questions, **options)
        except LayaError as error:
            self.errors.append(error)
            return error

    def put(self, headers: dict[str, Any], body: Any, *, content_type: str = "application/json") -> str:
        """Put a message on the queue as somebody does who keeps to no rule; its id."""
        id_ = str(uuid.uuid4())
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        message = {
            "body": base64.b64encode(encoded).decode(),
            "content-encoding": "utf-8",
            "content-type": content_type,
            "headers": {"id": id_, "task": "laya.submit_prediction", "lang": "py", "argsrepr": STATE, **headers},
            "properties": {
                "correlation_id": id_,
                "delivery_mode": 2,
                "delivery_tag": str(uuid.uuid4()),
                "delivery_info": {"exchange": "", "routing_key": "laya.english"},
                "body_encoding": "base64",
                "priority": 0,
            },
        }
        self.client.lpush("laya.english", json.dumps(message))
        return id_

    def handled(self) -> None:
        wait_until(lambda: not self.client.exists("laya.english", "unacked"), what="the end of all messages")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with Scene(tmp_path_factory.mktemp("silence")) as made:
        _play(made)
        yield made


def _play(scene: Scene) -> None:
    """Everything that can happen to a request."""
    assert "answers" in scene.ask(f"fine {STATE}")
    for verb in ("start", "end", "group", "memory", "exit"):
        assert isinstance(scene.ask(f"{verb} {STATE}"), PredictionFailed), verb
    body = [[f"fine {STATE}", QUESTIONS], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    scene.put({}, body)
    scene.put({}, [[{STATE: STATE}, {"q": {"type": OPTION, "instructions": QUESTION}}], {}, {}])
    scene.put({}, [[{STATE: {1: 2}}, QUESTIONS], {"hooks": STATE}, {}])
    scene.put({"task": "os.system"}, body)
    scene.put({}, body, content_type="application/x-python-serialize")
    scene.put({}, f"{STATE}\xff".encode("latin-1"))
    scene.put({}, f'[["{STATE}", {{'.encode())
    scene.put({"eta": STATE}, body)
    scene.put({"task": "celery.map"}, [[], {"task": {"task": "laya.submit_prediction", "args": []}, "it": [STATE]}, {}])
    scene.put({"laya_tenant": "acme", "laya_tenant_signature": f"1:{STATE}"}, body)
    scene.put({"id": f"{STATE}\n[CRITICAL] forged"}, body)
    scene.client.lpush("laya.english", f'{{"body": "{STATE}"}}', STATE)
    late = scene.backend.submit_prediction.apply_async((f"fine {STATE}", QUESTIONS), expires=-1)
    scene.errors.append(_error(late))
    for text in (f"sleep {STATE}", f"fine {STATE}"):
        scene.backend.submit_prediction.delay(text, QUESTIONS)
    scene.backend.submit_prediction.apply_async((f"fine {STATE}", QUESTIONS), countdown=60)
    scene.replies = _replies(scene)  # what an operator sees meanwhile
    scene.keys = _other_keys(scene)
    for request in scene.replies["scheduled"]:
        scene.backend.app.control.revoke(request["request"]["id"])
    wait_until(lambda: "flagged as revoked" in scene.worker.text(), what="the revocation")
    scene.client.client_kill_filter(_type="normal", skipme=True)
    assert "answers" in scene.ask(f"fine {STATE}")
    wait_until(lambda: "task-failed" in {event["type"] for event in scene.events}, what="the events")


def _error(result: Any) -> BaseException:
    error: BaseException = result.get(timeout=20, propagate=False)
    return error


def _replies(scene: Scene) -> dict[str, Any]:
    """What the worker answers to every question that an operator can ask."""
    inspect = scene.backend.app.control.inspect(timeout=5, limit=1)
    wait_until(lambda: any((inspect.scheduled() or {}).values()), what="the message for later")
    replies = {name: _one(getattr(inspect, name)()) for name in ("active", "reserved", "scheduled", "stats", "conf")}
    ids = [entry["request"]["id"] for entry in replies["scheduled"]]
    replies["query_task"] = _one(inspect.query_task(ids))
    replies["report"] = _one(inspect.report())
    replies["registered"] = _one(inspect.registered())
    return replies


def _one(answers: dict[str, Any] | None) -> Any:
    assert answers
    return next(iter(answers.values()))


def _other_keys(scene: Scene) -> str:
    """Every key that keeps no whole message and no result: its name and what it holds."""
    texts = []
    for key in scene.client.scan_iter():
        name = key.decode()
        if name.startswith(("celery-task-meta", "laya.english", "unacked", "laya.malformed", "laya.dead.messages")):
            continue
        kind = scene.client.type(key).decode()
        read: dict[str, Callable[[Any], Any]] = {
            "string": scene.client.get,
            "set": scene.client.smembers,
            "hash": scene.client.hgetall,
            "list": lambda key: scene.client.lrange(key, 0, -1),
            "zset": lambda key: scene.client.zrange(key, 0, -1, withscores=True),
        }
        texts.append(f"{name}: {read[kind](key)!r}")
    return "\n".join(texts)


def test_the_log_holds_no_text_of_a_request_and_no_password(scene: Scene) -> None:
    told = [line for line in scene.worker.text().splitlines() if found(line)]
    assert told == []


def test_the_log_says_what_failed_and_where(scene: Scene) -> None:
    log = scene.worker.text()
    assert "raised unexpected: PredictionFailed (ValueError)" in log
    assert "hook Lenient.on_predict_start failed: ValueError" in log
    assert "in on_predict_start" in log
    assert "raised expected: InvalidRequest" in log
    assert "(task os.system) is dead-lettered as" in log
    assert "ContentDisallowed: Refusing to deserialize" in log
    assert "its body cannot be decoded: DecodeError (UnicodeDecodeError)" in log


def test_a_message_cannot_forge_a_line_of_the_log(scene: Scene) -> None:
    assert not [line for line in scene.worker.text().splitlines() if line.startswith("[CRITICAL] forged")]


def test_the_events_hold_no_text_of_a_request(scene: Scene) -> None:
    assert {"task-received", "task-started", "task-succeeded", "task-failed"} <= {each["type"] for each in scene.events}
    assert [event for event in scene.events if found(json.dumps(event, default=repr))] == []


def test_a_failed_task_s_event_tells_the_class_and_the_place(scene: Scene) -> None:
    failures = [event for event in scene.events if event["type"] == "task-failed"]
    assert "PredictionFailed (ValueError)" in {event["exception"] for event in failures}
    assert any(
        "in on_predict_start" in event["traceback"] for event in failures if event["exception"].startswith("Pre")
    )


def test_the_worker_s_answers_to_an_operator_hold_no_text_of_a_request(scene: Scene) -> None:
    assert scene.replies["scheduled"]
    assert {name: text for name, reply in scene.replies.items() if found(text := json.dumps(reply, default=repr))} == {}


def test_no_other_key_of_the_server_holds_a_text_of_a_request(scene: Scene) -> None:
    assert "_kombu.binding" in scene.keys
    assert found(scene.keys) == set()


def test_the_metrics_hold_no_text_of_a_request(scene: Scene) -> None:
    address = re.search(r"Metrics at (http://\S+)", scene.worker.text())
    assert address is not None
    with urllib.request.urlopen(address[1], timeout=10) as page:
        metrics = page.read().decode()
    assert "laya_" in metrics
    assert found(metrics) == set()


def test_the_caller_of_a_failed_request_is_told_what_his_own_state_did(scene: Scene) -> None:
    failed = [error for error in scene.errors if isinstance(error, PredictionFailed)]
    assert any(f"bad start {STATE}" in str(error) for error in failed)


def test_no_error_holds_a_password(scene: Scene) -> None:
    assert scene.errors
    assert [error for error in scene.errors if PASSWORD in f"{error!r} {error} {error.__dict__}"] == []


def test_a_backend_that_cannot_connect_tells_no_password(caplog: pytest.LogCaptureFixture) -> None:
    url = f"redis://someone:{PASSWORD}@127.0.0.1:1/0"
    backend = Backend(url)
    with caplog.at_level(logging.DEBUG), pytest.raises(BrokerUnavailable) as failure:
        backend.predict("hello", {"q": {"type": "noul", "instructions": "It is urgent."}}, timeout=5)
    backend.app.close()
    shown: list[Any] = [failure.value, failure.value.__cause__, backend.app, backend.app.connection(), backend.app.conf]
    shown += [backend.app.backend.as_uri(), backend.app.settings, backend.app.conf.humanize(with_defaults=True)]
    assert PASSWORD not in " ".join([*(f"{each!r} {each}" for each in shown[:4]), *map(str, shown[5:]), caplog.text])


def test_a_wrong_password_is_an_error_that_does_not_repeat_it(scene: Scene) -> None:
    backend = Backend(scene.server.url.replace("//", "//:zqpasswordwrong@"))
    with pytest.raises(BrokerUnavailable) as failure:
        backend.predict("hello", {"q": {"type": "noul", "instructions": "It is urgent."}}, timeout=5)
    backend.close()
    assert "password" in str(failure.value)
    assert "zqpassword" not in f"{failure.value!r}{failure.value.__cause__!r}"


def test_a_request_s_repr_describes_it() -> None:
    request = PredictionRequest(STATE, QUESTIONS, {"model": "english"})
    assert repr(request) == "PredictionRequest(text of 7 characters; team, level)"


def test_settings_show_no_url() -> None:
    settings = ProducerSettings(broker_url=f"redis://:{PASSWORD}@h/0", result_url=f"redis://:{PASSWORD}@h/1")
    assert PASSWORD not in repr(settings)


# --- what may be told ---


def test_an_error_is_told_by_its_class_and_what_caused_it() -> None:
    assert told(ValueError(STATE)) == "ValueError"
    assert (
        told(ValueError(UnicodeDecodeError("utf-8", STATE.encode(), 0, 1, STATE))) == "ValueError (UnicodeDecodeError)"
    )
    assert told(PredictionFailed(f"KeyError: {STATE}", {"cause": "KeyError"})) == "PredictionFailed (KeyError)"
    assert told(InvalidRequest(f"question 'q': {STATE}", {"question": "q"})) == "InvalidRequest (question 'q')"
    assert told(BrokerUnavailable("no server at 127.0.0.1:1")) == "BrokerUnavailable: no server at 127.0.0.1:1"


def test_places_name_the_files_of_a_whole_chain_and_no_texts() -> None:
    try:
        try:
            raise KeyError(STATE)
        except KeyError as error:
            error.add_note(STATE)
            raise LayaError(STATE) from error
    except LayaError as error:
        text = places(error)
    assert text.count("test_silence.py") == 2
    assert [line for line in text.splitlines() if line.startswith(("KeyError", "LayaError"))] == [
        "KeyError",
        "LayaError",
    ]
    assert STATE not in text


def test_an_error_that_causes_itself_is_told_once() -> None:
    first, second = ValueError("a"), TypeError("b")
    first.__cause__, second.__cause__ = second, first
    assert places(first).count("Traceback") == 2


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[31mb", "a\u2028b", "a\u202eb", "a\rb", "a\x00b", "a\ud800b"])
def test_a_text_of_others_stays_on_one_line(text: str) -> None:
    assert escaped(text).isprintable()
    assert escaped(escaped(text)) == escaped(text)
    assert len(escaped("x" * 100_000)) == 1000


def test_states_are_logged_when_that_is_asked_for() -> None:
    def failed(log_state: bool) -> str:
        try:
            raise ValueError(STATE)
        except ValueError as error:
            trace = (ValueError, error, error.__traceback__)
            record = logging.LogRecord(
                "celery.app.trace", logging.ERROR, "", 1, "%(exc)s", ({"exc": repr(error)},), trace
            )
        Discreet(log_state=log_state).filter(record)
        return logging.Formatter().format(record)

    assert STATE in failed(log_state=True)
    assert STATE not in failed(log_state=False)
