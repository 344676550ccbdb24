"""What lies on a queue and is no request of ours: answered, dead-lettered or set aside; never a loop or a crash."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery.exceptions import NotRegistered

from producer.errors import InvalidRequest, PoisonedRequest
from tests.faults.deployment import NOUL, VISIBILITY_S, Deployment, dead, deployed
from tests.waiting import wait_until
from worker.dead import DeadLetters

QUEUE = "laya.english"
SECRET = "a text that nobody shall see"
RECORDED = Path(__file__).with_name("message-schema-1.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("garbage"), threads=4, LAYA_MAX_DELIVERIES="2") as made:
        yield made


def message(task_id: str, **headers: Any) -> dict[str, Any]:
    """A good message of ours, with other headers."""
    made: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    made["headers"] |= {"id": task_id, "root_id": task_id, **headers}
    made["properties"] |= {"delivery_tag": f"tag-{task_id}", "correlation_id": task_id}
    return made


def with_body(task_id: str, body: bytes, **changes: Any) -> dict[str, Any]:
    return {**message(task_id), "body": base64.b64encode(body).decode(), **changes}


def put(run: Deployment, text: str | bytes) -> None:
    """Lay it on the queue, and ring."""
    run.client.lpush(QUEUE, text)
    run.client.lpush("laya.bell.laya.english", 1)


def gone(run: Deployment) -> bool:
    """Whether the queue is empty, nothing is on record, and the worker serves."""
    wait_until(run.settled, what="an empty queue and no record")
    return "answers" in run.backend.predict("good", NOUL)


NO_MESSAGE: dict[str, bytes] = {
    "no JSON": SECRET.encode(),
    "JSON of another shape": json.dumps([SECRET]).encode(),
    "no delivery tag": json.dumps({"body": SECRET, "headers": {}, "properties": {}}).encode(),
    "cut off": json.dumps(message("cut")).encode()[:-20],
    "bytes": bytes(range(256)),
    "deep": b'{"a":' * 5000 + b"1" + b"}" * 5000,
}


@pytest.mark.parametrize("case", NO_MESSAGE)
def test_what_is_no_message_is_set_aside(case: str, run: Deployment) -> None:
    before = run.client.llen("laya.malformed")
    put(run, NO_MESSAGE[case])
    wait_until(lambda: run.client.llen("laya.malformed") == before + 1, what="the malformed list")
    assert gone(run)


BODY = json.dumps([[SECRET, NOUL], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()
UNREADABLE: dict[str, Callable[[str], dict[str, Any]]] = {
    "body cut off": lambda id_: with_body(id_, BODY[:-30]),
    "body of another shape": lambda id_: with_body(id_, b'{"state": 1}'),
    "body nested 100,000 levels deep": lambda id_: with_body(id_, b"[" * 100_000 + b"]" * 100_000),
    "a pickle": lambda id_: with_body(id_, BODY, **{"content-type": "application/x-python-serialize"}),
    "a time that is none": lambda id_: message(id_, eta="tomorrow"),
    "an expiry that is none": lambda id_: message(id_, expires="soon"),
    "an id of kombu's own type": lambda id_: message(
        id_, group={"__type__": "uuid", "__value__": {"hex": uuid4().hex}}
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_message_that_cannot_be_read_is_answered_and_dead_lettered(case: str, run: Deployment) -> None:
    task_id = f"unreadable-{case.replace(' ', '-')}"
    put(run, json.dumps(UNREADABLE[case](task_id)))
    with pytest.raises(InvalidRequest, match="cannot be read") as refusal:
        run.backend.submit_prediction.AsyncResult(task_id).get(timeout=20)
    assert SECRET not in str(refusal.value)
    found = DeadLetters(run.backend.app).get(task_id)
    assert found is not None
    assert (found[0].kind, found[0].checkpoint) == ("unreadable", "english")
    assert SECRET not in json.dumps([found[0].reason, found[0].task])
    assert gone(run)


NAMELESS: dict[str, dict[str, Any]] = {
    "no task": {"headers": {}},
    "headers that are a list": {"headers": []},
    "a task that is a list": {"headers": {"id": "x", "task": ["laya.submit_prediction"]}},
}


@pytest.mark.parametrize("case", NAMELESS)
def test_a_message_without_a_task_is_dead_lettered(case: str, run: Deployment) -> None:
    before = len(DeadLetters(run.backend.app).letters())
    put(run, json.dumps({**message(f"nameless-{case[:2]}"), **NAMELESS[case]}))
    wait_until(lambda: len(DeadLetters(run.backend.app).letters()) == before + 1, 20, what="the dead letter")
    assert gone(run)


def test_an_unknown_task_is_answered_and_dead_lettered_and_can_be_sent_again(run: Deployment) -> None:
    put(run, json.dumps(message("stranger", task="billing.pay")))
    result = run.backend.submit_prediction.AsyncResult("stranger")
    with pytest.raises(NotRegistered):
        result.get(timeout=20)
    found = DeadLetters(run.backend.app).get("stranger")
    assert found is not None
    assert (found[0].kind, found[0].task) == ("unknown task", "billing.pay")
    assert gone(run)
    (line,) = [line for line in run.log().splitlines() if "billing.pay" in line]
    assert "is dead-lettered as stranger: this worker knows no such task" in line


def test_a_message_at_which_the_consumer_fails_comes_again_and_is_then_dead_lettered(run: Deployment) -> None:
    put(run, json.dumps(message("stamped", stamped_headers=7)))
    with pytest.raises(PoisonedRequest):
        run.backend.submit_prediction.AsyncResult("stamped").get(timeout=10 * VISIBILITY_S)
    assert gone(run)


def test_a_message_of_an_older_producer_is_answered(run: Deployment) -> None:
    """As it was recorded when its schema was the newest."""
    put(run, json.dumps(message("older")))
    assert set(run.backend.submit_prediction.AsyncResult("older").get(timeout=20)["answers"]) == {"q"}


def test_a_message_of_a_newer_producer_is_answered_with_what_to_do(run: Deployment) -> None:
    put(run, json.dumps(message("newer", laya_schema=99)))
    with pytest.raises(InvalidRequest, match="update the workers"):
        run.backend.submit_prediction.AsyncResult("newer").get(timeout=20)
    assert gone(run)


def test_a_message_that_lies_there_twice_has_one_answer(run: Deployment) -> None:
    for tag in ("first", "second"):
        twice = message("twice")
        twice["properties"]["delivery_tag"] = tag
        put(run, json.dumps(twice))
    assert "answers" in run.backend.submit_prediction.AsyncResult("twice").get(timeout=20)
    wait_until(run.settled, what="both acknowledgements")


def test_none_of_all_this_killed_the_worker_or_was_logged(run: Deployment) -> None:
    assert run.deaths == 0
    assert SECRET not in run.log()


def test_the_log_says_of_no_message_that_it_was_discarded(run: Deployment) -> None:
    """As Celery does of each that it cannot use; but they are kept."""
    said = run.log()
    assert [word for word in ("discarded", "deleted", "Can't decode") if word in said] == []
    assert said.count("is dead-lettered as") == len(UNREADABLE) + len(NAMELESS) + 1


# --- laya-workers dead, on what the tests above have left ---


def test_dead_list_has_every_kind_and_no_text(run: Deployment) -> None:
    listed = dead(run, "list", "--json")
    assert {letter["kind"] for letter in json.loads(listed.stdout)} >= {"unreadable", "unknown task", "malformed"}
    table = dead(run, "list")
    assert "stranger" in table.stdout
    assert SECRET not in listed.stdout + table.stdout


def test_dead_show_shows_a_text_only_if_asked(run: Deployment) -> None:
    task_id = "unreadable-a-pickle"
    assert SECRET not in dead(run, "show", task_id).stdout
    assert SECRET in dead(run, "show", task_id, "--state").stdout
    assert json.loads(dead(run, "show", task_id, "--state", "--json").stdout)["body"][0][0] == SECRET


def test_a_message_whose_envelope_is_damaged_is_sent_again_if_asked(run: Deployment) -> None:
    damaged = message("damaged", expires="soon")
    damaged["properties"]["delivery_info"] = SECRET
    known = {letter.id for letter in DeadLetters(run.backend.app).letters()}
    put(run, json.dumps(damaged))
    found = wait_until(lambda: {letter.id for letter in DeadLetters(run.backend.app).letters()} - known)
    sent = dead(run, "retry", *found)
    assert (sent.returncode, "1 sent again" in sent.stderr) == (0, True)
    assert gone(run)


def test_dead_retry_and_drop_say_what_they_did(run: Deployment) -> None:
    assert dead(run, "retry").returncode == 2
    assert dead(run, "retry", "nobody").returncode == 1
    shown = dead(run, "show", "nobody")
    assert (shown.returncode, "no dead letter has the id nobody" in shown.stderr) == (1, True)
    assert dead(run, "drop", "stranger").returncode == 0
    assert DeadLetters(run.backend.app).get("stranger") is None
    malformed = next(letter.id for letter in DeadLetters(run.backend.app).letters() if letter.kind == "malformed")
    retried = dead(run, "retry", malformed)
    assert (retried.returncode, "cannot be sent" in retried.stderr) == (1, True)
    assert dead(run, "drop", "--all").returncode == 0
    assert "no dead letters" in dead(run, "list").stderr


def test_a_worker_that_can_write_no_dead_letter_goes_on_and_writes_it_later(run: Deployment) -> None:
    run.client.set("laya.dead", "of the wrong type")
    put(run, json.dumps(message("refused", task="nobody.knows")))
    wait_until(lambda: "stays on record" in run.log(), what="the line about it")
    assert "answers" in run.backend.predict("good", NOUL)
    run.client.delete("laya.dead")
    wait_until(lambda: DeadLetters(run.backend.app).get("refused"), what="the dead letter")
    assert gone(run)
    assert run.deaths == 0
