"""The skip cache behind a real worker: tenants that cannot see each other, requests that want no cache, a hit that
loads nothing, and the commands that look into the cache and clear it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu.utils.uuid import uuid
from typer.testing import CliRunner, Result

from hooks.cache_admin import Administration
from laya.simulated import write_checkpoint
from producer.errors import InvalidRequest, UnknownCheckpoint
from producer.settings import ProducerSettings
from producer.tenancy import TENANT_HEADER, signed
from tests.integration.commandline import laya_workers
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until
from worker.cli.cache import tenant_of
from worker.cli.commands import app
from worker.cli.screen import Code, CommandError
from worker.server import EmbeddedServer

KEY = "a secret that the backend and the worker have"
QUESTIONS = {"angry": {"type": "noul", "instructions": "Is the customer angry?"}}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("checkpoints")
    names = ("english", "multilingual")
    return ",".join(
        f"{name}={write_checkpoint(home / name, pass_ms=1 + place, row_ms=0)}" for place, name in enumerate(names)
    )


@pytest.fixture(scope="module")
def cache_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(scope="module")
def cached(cache_server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(cache_server.url) as connection:
        yield connection


@pytest.fixture(scope="module")
def worker(make_worker: Callable[..., WorkerProcess], cache_server: EmbeddedServer) -> WorkerProcess:
    return make_worker(
        LAYA_HOOKS="hooks.SkipCache",
        LAYA_CACHE_URL=cache_server.url,
        LAYA_CACHE_BUDGET_MS="2000",  # the machine is shared, and a hit is what is looked for
        LAYA_TENANT_KEY=KEY,
        LAYA_MAX_LOADED="1",
        LAYA_DWELL="0.1",
    ).start()


@pytest.fixture(scope="module")
def backend(server: EmbeddedServer, checkpoints: str) -> Iterator[Backend]:
    made = Backend(server.url, checkpoints=checkpoints, tenant_key=KEY)
    yield made
    made.close()


class Figures:
    """What the worker's cache has counted since the last look."""

    def __init__(self, backend: Backend) -> None:
        self._control = backend.app.control
        self._before = self.now()

    def now(self) -> dict[str, Any]:
        ((facts,),) = (answer.values() for answer in self._control.broadcast("cache", reply=True, limit=1, timeout=10))
        return dict(facts)

    def since(self) -> dict[str, int]:
        before, self._before = self._before, self.now()
        return {name: self._before[name] - before[name] for name in ("hits", "misses", "bypassed")}


@pytest.fixture
def figures(worker: WorkerProcess, backend: Backend) -> Figures:
    return Figures(backend)


def entries(cached: redis.Redis, tenant: str, number: int) -> list[bytes]:
    """The keys of a tenant, once there are so many: an answer is written beside the call that computed it."""
    return list(
        wait_until(
            lambda: found if len(found := cached.keys(f"laya.cache:{tenant}:*")) >= number else None,
            what=f"{number} entries of {tenant!r}",
        )
    )


def test_tenants_cannot_see_each_others_answers(backend: Backend, cached: redis.Redis, figures: Figures) -> None:
    state = "a state that two tenants ask about"
    answers = [backend.predict(state, QUESTIONS, tenant="acme")]
    entries(cached, "acme", 1)
    answers.append(backend.predict(state, QUESTIONS, tenant="globex"))
    entries(cached, "globex", 1)
    answers.append(backend.predict(state, QUESTIONS))
    assert figures.since() == {"hits": 0, "misses": 3, "bypassed": 0}
    answers.append(backend.predict(state, QUESTIONS, tenant="acme"))
    assert figures.since() == {"hits": 1, "misses": 0, "bypassed": 0}
    assert all(answer == answers[0] for answer in answers)


def test_a_list_of_requests_is_its_tenants_too(backend: Backend, cached: redis.Redis, figures: Figures) -> None:
    request = {"state": "asked in a list", "questions": QUESTIONS}
    for _ in range(2):
        backend.submit_predictions.delay([request], tenant="initech").get(timeout=30)
        entries(cached, "initech", 1)
    assert figures.since() == {"hits": 1, "misses": 1, "bypassed": 0}


@pytest.mark.parametrize("what", ["unsigned", "copied", "another secret"])
def test_a_worker_refuses_a_tenant_that_is_not_signed_for_this_message(
    backend: Backend, worker: WorkerProcess, cached: redis.Redis, what: str
) -> None:
    name, args = backend.submit_prediction.name, ["a forged request", QUESTIONS]
    headers: dict[str, Any] = {TENANT_HEADER: "victim"}
    if what == "copied":
        headers = signed("victim", (name, uuid(), args, {}), backend.app.settings)
    elif what == "another secret":
        settings = ProducerSettings(tenant_key="a secret that nobody else has")
        headers = signed("victim", (name, task_id := uuid(), args, {}), settings)
    sent = backend.app.send_task(
        name, args, task_id=task_id if what == "another secret" else uuid(), headers=headers, queue="laya.english"
    )
    with pytest.raises(InvalidRequest, match=r"victim|names a tenant without"):
        sent.get(timeout=30)
    assert cached.keys("laya.cache:victim:*") == []


def test_a_request_that_wants_no_cache_is_computed_and_not_kept(
    backend: Backend, cached: redis.Redis, figures: Figures
) -> None:
    before = cached.dbsize()
    for _ in range(2):
        backend.predict("kept by nobody", QUESTIONS, cache=False)
    assert figures.since() == {"hits": 0, "misses": 0, "bypassed": 2}
    assert cached.dbsize() == before


def test_requests_of_one_list_may_each_want_a_cache_or_none(
    backend: Backend, cached: redis.Redis, figures: Figures
) -> None:
    requests = [
        {"state": f"state {place} of a list", "questions": QUESTIONS, "cache": place % 2 == 0, "model": "english"}
        for place in range(4)
    ]
    before = len(entries(cached, "", 0))
    results = backend.submit_predictions.delay(requests).get(timeout=30)
    alone = [backend.predict(**request) for request in [{**one, "cache": False} for one in requests]]
    assert [result["answers"] for result in results] == [result["answers"] for result in alone]
    assert len(entries(cached, "", before + 2)) == before + 2
    assert figures.since() == {"hits": 0, "misses": 2, "bypassed": 6}


def test_a_hit_loads_no_checkpoint_and_evicts_none(backend: Backend, cached: redis.Redis, figures: Figures) -> None:
    def holdings() -> tuple[list[str], dict[str, int]]:
        answers = backend.app.control.broadcast("resident", reply=True, limit=1, timeout=10)
        ((facts,),) = (one.values() for one in answers)
        return facts["resident"], facts["loads"]

    before = len(entries(cached, "", 0))
    first = backend.predict("asked of english", QUESTIONS, model="english")
    entries(cached, "", before + 1)
    backend.predict("asked of multilingual", QUESTIONS, model="multilingual")
    figures.since()
    resident = holdings()
    assert resident[0] == ["multilingual"]
    assert backend.predict("asked of english", QUESTIONS, model="english") == first
    assert figures.since()["hits"] == 1
    assert holdings() == resident


# --- commands ---


Run = Callable[..., Result]


@pytest.fixture
def run(backend: Backend, cache_server: EmbeddedServer, checkpoints: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process, which has imported what takes seconds already."""
    monkeypatch.setattr("worker.cli.cache.app", backend.app)
    settings = {
        "LAYA_CACHE_URL": cache_server.url,
        "LAYA_CHECKPOINTS": checkpoints,
        "LAYA_HOOKS": "hooks.SkipCache",
        "LAYA_DEVICE": "cpu",
    }

    def command(*arguments: str, stdin: str = "", **environment: str) -> Result:
        return CliRunner().invoke(app, ["cache", *arguments], input=stdin, env=settings | environment)

    return command


def test_the_key_of_a_request_is_the_one_that_its_answer_has(
    backend: Backend, worker: WorkerProcess, cached: redis.Redis, run: Run, tmp_path: Path
) -> None:
    request = {"state": {"subject": "Where is it?"}, "questions": QUESTIONS, "model": "english", "max_len": 128}
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request), encoding="utf-8")
    asked = ("key", "--request", str(file), "--tenant", "hooli", "--json")
    before = json.loads(run(*asked).stdout)
    backend.predict(**request, tenant="hooli")
    (stored,) = entries(cached, "hooli", 1)
    after = json.loads(run(*asked).stdout)
    assert (before["stored"], after["stored"]) == (False, True)
    assert before["key"] == after["key"] == stored.decode()

    shown = run("show", after["key"].rpartition(":")[2], "--json")
    facts = json.loads(shown.stdout)
    assert facts["result"]["answers"] == backend.predict(**request)["answers"]
    pretty = run("show", after["key"])
    assert pretty.exit_code == 0
    for word in ("hooli", "english", "at most", "bytes", "angry"):
        assert word in pretty.stdout


def test_a_key_by_options_goes_alone_to_a_pipe(worker: WorkerProcess, run: Run) -> None:
    found = run("key", "My parcel never arrived", "--preset", "triage", LAYA_HOOKS="my.Redact,hooks.SkipCache")
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("laya.cache::english:")
    assert len(found.stdout.splitlines()) == 1
    assert "its answer is not stored" in found.stderr
    assert "my.Redact may rewrite it" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["key"], "name the text"),
        (["key", "x"], "name the questions"),
        (["key", "--request", "/nowhere.json"], "cannot read the request"),
        (["clear"], "say what to clear"),
        (["clear", "--all", "--checkpoint", "english"], "say what to clear"),
    ],
)
def test_a_command_that_cannot_be_meant_is_a_usage_error(run: Run, arguments: list[str], said: str) -> None:
    error = run(*arguments).exception
    assert isinstance(error, CommandError)
    assert error.code == Code.USAGE
    assert said in str(error)


def test_no_tenant_is_named_by_an_empty_name_or_the_deployments_own() -> None:
    assert [tenant_of(name) for name in ("", "laya", None, "acme")] == [None, None, None, "acme"]


def test_the_key_of_a_request_for_nobody_names_those_who_are_there(run: Run) -> None:
    error = run("key", "x", "--preset", "triage", "--model", "nobody").exception
    assert isinstance(error, UnknownCheckpoint)
    assert error.known == ["english", "multilingual"]


def test_what_is_not_there_is_one_line_and_a_code(cache_server: EmbeddedServer) -> None:
    ended = laya_workers("cache", "show", "laya.cache::english:" + "0" * 64, LAYA_CACHE_URL=cache_server.url)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: nothing lies under this key")
    assert len(ended.stderr.splitlines()) == 1


def test_a_cache_that_is_away_is_told_without_its_password(run: Run) -> None:
    error = run("clear", "--all", "--yes", LAYA_CACHE_URL="redis://:swordfish@127.0.0.1:9/0").exception
    assert isinstance(error, CommandError)
    assert error.code == Code.UNREACHABLE
    assert "127.0.0.1:9 does not answer" in str(error)
    assert "swordfish" not in str(error)


def test_a_value_that_is_damaged_is_shown_as_such(cached: redis.Redis, run: Run) -> None:
    key = "laya.cache:acme:english:" + "a" * 64
    cached.set(key, b"j1 nonsense")
    shown = run("show", key)
    cached.delete(key)
    assert "11 bytes" in shown.stdout
    assert "the value is damaged" in str(shown.exception)


def test_figures_and_clearing_by_tenant(backend: Backend, cached: redis.Redis, run: Run, figures: Figures) -> None:
    backend.predict("counted for umbrella", QUESTIONS, tenant="umbrella")
    entries(cached, "umbrella", 1)
    others = cached.dbsize() - 1
    facts = json.loads(run("stats", "--json").stdout)
    (share,) = [share for share in facts["entries"] if share["tenant"] == "umbrella"]
    assert (share["checkpoint"], share["entries"]) == ("english", 1)
    assert [worker["misses"] > 0 for worker in facts["workers"].values()] == [True]
    assert "umbrella" in run("stats").stdout

    refused = run("clear", "--tenant", "umbrella", stdin="n\n")
    assert "nothing was removed" in str(refused.exception)
    assert "Remove 1 entries?" in refused.stderr
    assert run("clear", "--tenant", "umbrella", "--yes").stderr == "1 removed\n"
    assert cached.keys("laya.cache:umbrella:*") == []
    assert cached.dbsize() == others


# --- a large cache ---

MANY = 50_000


@pytest.fixture
def large(cached: redis.Redis) -> redis.Redis:
    """Another deployment's fifty thousand entries, half of them of one checkpoint."""
    for start in range(0, MANY, 5_000):
        names = ["english" if place % 2 else "multilingual" for place in range(start, start + 5_000)]
        cached.mset({f"large.cache:acme:{name}:{start + at:064x}": b"jx" for at, name in enumerate(names)})
    return cached


def test_clearing_a_large_cache_holds_up_nobody(large: redis.Redis) -> None:
    large.config_resetstat()
    admin, done = Administration(large, "large"), threading.Event()
    answers: list[Any] = []
    others = large.dbsize() - MANY

    def look() -> None:
        with redis.Redis(connection_pool=redis.ConnectionPool(**large.connection_pool.connection_kwargs)) as other:
            while not done.is_set():
                answers.append(other.ping())

    watching = threading.Thread(target=look)
    watching.start()
    try:
        assert sum(share.entries for share in admin.shares()) == MANY
        assert admin.clear("acme", "english") == MANY // 2
        assert {share.checkpoint for share in admin.shares()} == {"multilingual"}
        assert admin.clear() == MANY // 2
    finally:
        done.set()
        watching.join()
    assert large.dbsize() == others
    commands = large.info("commandstats")
    assert not {"cmdstat_keys", "cmdstat_flushdb", "cmdstat_flushall", "cmdstat_del"} & set(commands)
    # Many small steps, between which the server answers others; how long one takes is the machine's matter.
    assert commands["cmdstat_scan"]["calls"] > MANY // 1000
    assert len(answers) > MANY // 1000
