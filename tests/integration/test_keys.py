"""Every key that a deployment writes on its server is in the table of the docs, and all of the table is written."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from laya.simulated import write_checkpoint
from tests.celery_process import ROOT
from tests.integration.commandline import laya_workers
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.server import EmbeddedServer

PAGE = ROOT / "docs" / "operating.md"
NAMESPACE = "shop"
QUESTIONS = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}
CHECKPOINTS = ("english", "cold", "broken", "papers")
NOT_RUN_HERE = "Flower"


def documented() -> dict[str, str]:
    """Pattern of each key in the table, and what the table says of it."""
    _, _, section = PAGE.read_text().partition("## What is on the server\n")
    rows = re.findall(r"^\| (`.+?`) \| \w[\w ]* \| (.+?) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return {key: what for keys, what in rows for key in re.findall(r"`([^`]+)`", keys)}


def expression(pattern: str) -> re.Pattern[str]:
    """What a pattern of the table stands for: `<...>` for anything, but for what is known here."""
    stands = {"<namespace>": NAMESPACE, "<checkpoint>": f"({'|'.join(CHECKPOINTS)})(\x06\x16\\d)?"}
    parts = re.split(r"(<[^>]+>)", pattern)
    return re.compile("".join(stands.get(part, ".+") if part.startswith("<") else re.escape(part) for part in parts))


@pytest.fixture(scope="module")
def touched(server: EmbeddedServer) -> Iterator[set[str]]:
    """Names of all keys that are written on the server, as it tells itself."""
    seen: set[str] = set()
    with redis.Redis.from_url(server.url) as client, client.pubsub() as events:
        client.config_set("notify-keyspace-events", "EA")
        events.psubscribe("__keyevent@0__:*")
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                if (message := events.get_message(ignore_subscribe_messages=True, timeout=0.1)) is not None:
                    seen.add(message["data"].decode())

        thread = threading.Thread(target=listen)
        thread.start()
        yield seen
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def busy(
    server: EmbeddedServer,
    touched: set[str],
    make_worker: Callable[..., WorkerProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> set[str]:
    """The keys after a run in which everything happens once."""
    home = tmp_path_factory.mktemp("checkpoints")
    # One is loaded when it is asked for, for longer than a heartbeat.
    listed = ",".join(
        f"{name}={write_checkpoint(home / name, pass_ms=1, load_s=load_s)}"
        for name, load_s in (("english", 0), ("cold", 2))
    )
    backend = Backend(server.url, checkpoints=f"{listed},broken={home},papers=/x", namespace=NAMESPACE)
    settings = {"LAYA_CHECKPOINTS": f"{listed},broken={home}", "LAYA_NAMESPACE": NAMESPACE}
    own = {"LAYA_HOOKS": "hooks.SkipCache", "LAYA_CACHE_BUDGET_MS": "5000", "LAYA_UNSERVED_AFTER": "1"}
    make_worker("-E", LAYA_PRELOAD="english", **own, **settings).start()
    ask = backend.submit_prediction.apply_async
    results = [
        ask(("hello", QUESTIONS), {"model": "english"}),
        ask(("hello", QUESTIONS), {"model": "cold"}, priority=3),
        ask(("hello", QUESTIONS), {"model": "broken"}),
        ask(("hello", QUESTIONS), {"model": "papers"}),
        backend.submit_predictions.delay([{"state": "hello", "questions": QUESTIONS, "model": "english"}]),
    ]
    with redis.Redis.from_url(server.url) as client:
        client.lpush("laya.english", "no message")
        results += [_come_back(backend, client, how_often) for how_often in (1, 2, 9)]
        for result in results:
            result.get(timeout=60, propagate=False)
        laya_workers("status", LAYA_BROKER_URL=server.url, **settings)
        wait_until(lambda: client.hlen("unacked") == 0, what="acknowledgements")
    backend.close()
    return touched


def _come_back(backend: Backend, client: redis.Redis, how_often: int) -> Any:
    """A message as it is after deaths of its workers; begun too often if it came back nine times."""
    many = [{"state": f"suspect {how_often}", "questions": QUESTIONS, "model": "english"}] * 2
    options = {"queue": "elsewhere"}
    result = backend.submit_predictions.apply_async((many,), **options)
    message = json.loads(client.rpop("elsewhere") or b"")
    message["headers"] |= {"redelivered": True, "laya-overdue": how_often}
    message["properties"]["delivery_info"] |= {"redelivered": True, "routing_key": "laya.english"}
    if how_often == 9:
        client.set(f"{NAMESPACE}.delivered.{result.id}", 9, ex=60)
    client.lpush("laya.english", json.dumps(message))
    return result


def test_every_key_on_the_server_is_documented(busy: set[str]) -> None:
    known = [expression(pattern) for pattern in documented()]
    strange = {key for key in busy if not any(one.fullmatch(key) for one in known)}
    assert {key for key in strange if not key.endswith("elsewhere")} == set()


def test_every_documented_key_is_there(busy: set[str]) -> None:
    unseen = {
        pattern
        for pattern, what in documented().items()
        if NOT_RUN_HERE not in what and not any(expression(pattern).fullmatch(key) for key in busy)
    }
    assert unseen == set()
