"""Dead letters and counts of deliveries on a real server: what is kept, how long, and what a retry undoes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from rich.console import Console

from producer.errors import PredictionFailed, QueueFull
from producer.transport_message import OVERDUE
from tests.celery_process import ROOT
from tests.integration.conftest import Backend
from worker.cli.dead import show_all
from worker.dead import DeadLetters, Kind, Letter, body_of, letter_of
from worker.deliveries import Deliveries

NOUL = {"q": {"type": "noul", "instructions": "It is urgent."}}


@pytest.fixture
def backend(server: Any, client: redis.Redis) -> Iterator[Backend]:
    client.flushall()
    made = Backend(server.url, checkpoints="english=/nowhere", namespace="mine", max_queue=1)
    yield made
    made.close()


@pytest.fixture
def dead(backend: Backend) -> DeadLetters:
    return DeadLetters(backend.app)


@pytest.fixture
def deliveries(backend: Backend) -> Deliveries:
    return Deliveries(backend.app)


def letter(letter_id: str, **changes: Any) -> Letter:
    facts = {"queue": "laya.english", "task": "t", "deliveries": 3, "at": 1.0, "size": 2, "reason": "r"}
    return Letter(**{"id": letter_id, "kind": "poisoned", "requests": 1, "questions": 1, **facts, **changes})


def ids(dead: DeadLetters) -> list[str]:
    return [one.id for one in dead.letters()]


def test_the_first_delivery_is_not_counted_and_the_last_is_not_begun(
    deliveries: Deliveries, client: redis.Redis
) -> None:
    assert client.keys() == []
    assert [deliveries.begin("one", 3) for _ in range(4)] == [2, 3, 0, 0]
    assert 0 < client.ttl("mine.delivered.one") <= 86_400
    assert deliveries.begin("two", 1) == 0
    deliveries.take_back("one")  # its worker ended, and not of it
    assert [deliveries.begin("one", 3) for _ in range(2)] == [3, 0]
    deliveries.forget("one")
    deliveries.take_back("one")
    assert deliveries.begin("one", 3) == 2


def test_requests_of_one_message_are_counted_by_themselves(deliveries: Deliveries, client: redis.Redis) -> None:
    """Three deaths each: one of them shared, when they were begun together."""
    assert deliveries.begin("many", 3) == 2
    assert deliveries.begin_one("many", 0, 3)
    deliveries.finish_one("many", 0)
    assert [deliveries.begin_one("many", 1, 3) for _ in range(3)] == [True, True, False]
    assert [deliveries.begin("many", 3) for _ in range(4)] == [3, 4, 5, 0]  # the deaths of one are not the message's
    deliveries.forget("many")
    assert client.keys("*delivered*") == []


def test_the_newest_are_kept(dead: DeadLetters, client: redis.Redis) -> None:
    for number in range(5):
        dead.add(letter(str(number)), {"body": "x"}, keep=3, seconds=100 + number)
    assert ids(dead) == ["2", "3", "4"]
    assert client.hlen("mine.dead.messages") == client.hlen("mine.dead.entries") == 3


def test_what_is_too_old_is_not_listed_and_goes_with_the_next(dead: DeadLetters, client: redis.Redis) -> None:
    dead.add(letter("old"), {"body": "x"}, keep=3, seconds=100)
    client.zadd("mine.dead", {"old": 1})
    assert ids(dead) == []
    dead.add(letter("new"), {"body": "x"}, keep=3, seconds=100)
    assert ids(dead) == ["new"]
    assert client.hkeys("mine.dead.messages") == [b"new"]
    assert all(0 < client.ttl(key) <= 100 for key in client.keys("mine.dead*"))


def test_a_retry_publishes_the_same_task_afresh_although_the_queue_is_full(
    dead: DeadLetters, deliveries: Deliveries, backend: Backend, client: redis.Redis
) -> None:
    task = backend.submit_prediction.apply_async(("hello", NOUL), {"model": "english"}, expires=0.1)
    raw = json.loads(client.rpop("laya.english") or b"")
    raw["headers"][OVERDUE] = 1
    raw["headers"]["redelivered"] = raw["properties"]["delivery_info"]["redelivered"] = True
    backend.app.backend.mark_as_failure(task.id, PredictionFailed("as asked"))
    deliveries.begin(task.id, 3)
    dead.add(letter(task.id), raw, keep=10, seconds=100)
    backend.submit_prediction.apply_async(("another", NOUL), {"model": "english"})
    assert dead.retry(task.id)
    sent = json.loads(client.lindex("laya.english", 0) or b"")
    assert sent["headers"]["id"] == task.id
    assert sent["headers"]["expires"] is None
    assert OVERDUE not in sent["headers"]
    assert "redelivered" not in sent["headers"] | sent["properties"]["delivery_info"]
    assert sent["properties"]["delivery_tag"] != raw["properties"]["delivery_tag"]
    assert client.llen("laya.bell.laya.english") == 3
    assert (ids(dead), client.keys("*delivered*"), client.keys("celery-task-meta-*")) == ([], [], [])
    assert not dead.retry(task.id)


def test_what_is_no_message_is_listed_and_dropped(dead: DeadLetters, client: redis.Redis) -> None:
    client.lpush("laya.malformed", b"\xffnonsense", b"more")
    (first, second) = dead.letters()
    assert {first.kind, second.kind} == {"malformed"}
    assert not dead.retry(first.id)
    assert dead.drop(first.id)
    assert ids(dead) == [second.id]


def test_letters_of_other_versions_are_listed_shown_and_sent(dead: DeadLetters, client: redis.Redis) -> None:
    dead.add(letter("known"), {"properties": {}}, keep=10, seconds=100)
    facts = json.loads(client.hget("mine.dead.entries", "known") or b"")
    for name, kept in {
        "newer": {**facts, "id": "newer", "severity": "high"},
        "older": {"id": "older", "queue": "laya.english"},
    }.items():
        dead.add(letter(name), {"properties": {}}, keep=10, seconds=100)
        client.hset("mine.dead.entries", name, json.dumps(kept))
    assert ids(dead) == ["known", "newer", "older"]
    assert [found[0] for name in ("newer", "older") if (found := dead.get(name))] == dead.letters()[1:]
    table = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worker.cli.dead.out", Console(file=table, width=200))
        show_all(dead.letters())
    assert "older" in table.getvalue()
    assert all(dead.retry(name) for name in ("newer", "older"))


@pytest.mark.parametrize("width", [50, 80, 200])
def test_a_list_cuts_no_id_and_no_reason(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "its body cannot be decoded: JSONDecodeError, in a message of another application"
    kinds: tuple[Kind, ...] = ("poisoned", "unreadable", "unknown task", "malformed")
    letters = [letter(f"{kind[:3]}-0123456789", kind=kind, reason=reason, size=1_234_567) for kind in kinds]
    table = StringIO()
    monkeypatch.setattr("worker.cli.dead.out", Console(file=table, width=width))
    show_all(letters)
    lines = table.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [line[:12] for line in lines if re.match(r"\w{3}-", line)] == [one.id[:12] for one in letters]
    assert " ".join(table.getvalue().split()).count(reason) == len(letters)
    assert len(lines) == {200: 1 + 4, 80: 1 + 4 * 3, 50: 1 + 4 * 3}[width]


def test_what_comes_from_no_checkpoint_s_queue_names_none() -> None:
    assert (letter("1").checkpoint, letter("2", queue="laya").checkpoint) == ("english", "")


def test_sizes_are_told_of_whatever_can_be_read() -> None:
    def sizes(payload: Any) -> Any:
        message = SimpleNamespace(headers=None, delivery_info=None, body=b"12", payload=payload)
        made = letter_of(message, "poisoned", "r")
        return made.requests, made.questions

    assert sizes((["state", NOUL], {}, {})) == (1, 1)
    assert sizes(([], {"state": 1, "questions": NOUL}, {})) == (1, 1)
    assert sizes(([[{"questions": NOUL}, {"questions": {}}, 7]], {}, {})) == (3, 1)
    assert sizes(([], {"requests": [{"questions": NOUL}]}, {})) == (1, 1)
    assert sizes("nonsense") == (None, None)


def test_a_body_that_is_not_json_is_shown_as_it_is() -> None:
    assert body_of("nonsense") == "nonsense"
    assert body_of(json.dumps({"body": "e30=", "properties": {"body_encoding": "base64"}})) == {}


def test_the_users_of_the_docs_may_do_all_this(server: Any, client: redis.Redis) -> None:
    client.flushall()
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    for line in re.findall(r"^ACL SETUSER .*$", page, flags=re.MULTILINE):
        client.execute_command(*re.findall(r"\([^)]*\)|\S+", line))
    url = {name: server.url.replace("//", f"//laya-{name}:secret@") for name in ("producer", "worker")}
    sides = {name: Backend(url[name], checkpoints="english=/nowhere", max_queue=1) for name in url}
    dead, deliveries = DeadLetters(sides["worker"].app), Deliveries(sides["worker"].app)
    assert [deliveries.begin("one", 2) for _ in range(2)] == [2, 0]
    assert deliveries.begin_one("one", 0, 2)
    deliveries.finish_one("one", 0)
    for number in range(3):
        dead.add(letter(str(number)), {"properties": {}}, keep=2, seconds=100)
    client.lpush("laya.malformed", "nonsense")
    assert [dead.drop(each) for each in ids(dead)[1:]] == [True, True]
    assert dead.retry("1")
    with pytest.raises(QueueFull):  # and the message is withdrawn
        sides["producer"].submit_prediction.apply_async(("hello", NOUL), {"model": "english"})
    assert client.llen("laya.english") == 1
    assert client.acl_log() == []
    for side in sides.values():
        side.close()
