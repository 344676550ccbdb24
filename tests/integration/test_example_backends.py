"""The example backends as they stand: real servers of theirs, a real worker, every error by its HTTP status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.celery_process import ROOT
from tests.integration.conftest import WorkerProcess
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port

pytestmark = pytest.mark.filterwarnings("ignore:checkpoint .* temperatures outside:RuntimeWarning")

QUESTIONS = {"refund": {"type": "noul", "instructions": "The customer wants money back."}}
ASK = {"state": "I was charged twice and want my money back.", "questions": QUESTIONS}

COMMANDS = {
    "fastapi": ("uvicorn", "examples.backends.fastapi_app:app", "--port", "{port}", "--log-level", "warning"),
    "flask": ("flask", "--app", "examples.backends.flask_app", "run", "--port", "{port}"),
    "django": ("examples.backends.django_app", "runserver", "--noreload", "127.0.0.1:{port}"),
}


class Site:
    """One example's server as a process of its own."""

    def __init__(self, kind: str, environment: Mapping[str, str], log: Path) -> None:
        port = free_port()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=90)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LAYA_")}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *(word.format(port=port) for word in COMMANDS[kind])],
                env=clean | dict(environment),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        wait_until(self._answers, 60, f"the start of {kind} ({log})")

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the backend ended at its start"
        try:
            self.client.get("/")
        except httpx.TransportError:
            return False
        return True

    def ask(self, body: Mapping[str, Any]) -> httpx.Response:
        """POST the request; a backend that hands out a ticket is polled until it has the answer."""
        response = self.client.post("/predictions", json=body)
        if response.status_code != 202:
            return response
        place = response.headers["location"]

        def answer() -> httpx.Response | None:
            polled = self.client.get(place)
            return polled if polled.status_code != 202 else None

        found: httpx.Response = wait_until(answer, 60, "the answer to a ticket")
        return found

    def end(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(20)


MakeSite = Callable[..., Site]


@pytest.fixture(scope="module")
def make_site(server: EmbeddedServer, checkpoints: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeSite]:
    made: list[Site] = []
    home = tmp_path_factory.mktemp("sites")

    def make(kind: str, **settings: str) -> Site:
        places = {"LAYA_BROKER_URL": server.url, "LAYA_CHECKPOINTS": checkpoints}
        environment = {**places, "WAIT_SECONDS": "60", **settings}
        made.append(Site(kind, environment, home / f"{kind}{len(made)}.log"))
        return made[-1]

    yield make
    for site in made:
        site.end()


@pytest.fixture(scope="module", autouse=True)
def worker(make_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    # Nobody reads the queue of `typed-decisions`: what is sent there waits.
    return make_worker("-c", "4", "-X", "laya.typed-decisions").start()


@pytest.fixture(scope="module", params=sorted(COMMANDS))
def site(request: pytest.FixtureRequest, make_site: MakeSite) -> Site:
    return make_site(request.param, LAYA_MAX_PAYLOAD="20000")


def test_a_backend_answers(site: Site) -> None:
    response = site.ask(ASK)
    assert response.status_code == 200, response.text
    body = response.json()
    result = body.get("result", body)
    assert result["answers"]["refund"]["type"] == "noul"
    assert result["routing"]["model"] == "english"


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [
        ({"questions": {"refund": {"type": "maybe"}}}, 422, "InvalidRequest"),
        ({"options": {"model": "nowhere"}}, 422, "UnknownCheckpoint"),
        ({"state": "x" * 30_000}, 413, "PayloadTooLarge"),
    ],
)
def test_the_caller_s_mistakes_have_their_status(site: Site, change: dict[str, Any], status: int, error: str) -> None:
    response = site.ask(ASK | change)
    assert (response.status_code, response.json()["error"]["type"]) == (status, error)
    assert "retry-after" not in response.headers


def test_a_body_that_is_no_request_is_the_caller_s_mistake(site: Site) -> None:
    for body in (b"no json", b"[]", b"{}"):
        response = site.client.post("/predictions", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 422


@pytest.mark.parametrize("kind", sorted(COMMANDS))
def test_a_broker_that_is_away_is_503_and_says_when_to_try_again(kind: str, make_site: MakeSite) -> None:
    alone = make_site(kind, LAYA_BROKER_URL=f"redis://127.0.0.1:{free_port()}/0")
    response = alone.client.post("/predictions", json=ASK)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "BrokerUnavailable")
    assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("kind", sorted(COMMANDS))
def test_a_full_queue_is_429_and_an_answer_that_does_not_come_504(
    kind: str, make_site: MakeSite, client: redis.Redis
) -> None:
    client.delete("laya.typed-decisions")
    site = make_site(kind, LAYA_MAX_QUEUE="1", WAIT_SECONDS="0.5")
    nowhere = ASK | {"options": {"model": "typed-decisions"}}
    late = site.ask(nowhere)
    assert (late.status_code, late.json()["error"]["type"]) == (504, "DeadlineExceeded")
    full = site.client.post("/predictions", json=nowhere)
    assert (full.status_code, full.json()["error"]["type"]) == (429, "QueueFull")
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in (late, full))


def test_the_page_of_workers_says_who_is_there_and_what_each_holds(make_site: MakeSite) -> None:
    site = make_site("fastapi")
    site.ask(ASK)

    def held() -> bool:
        workers = site.client.get("/workers").json()["workers"]
        return len(workers) == 1 and "english" in workers[0]["holds"]

    wait_until(held, 15, "the worker's announcement")


def test_django_s_own_tasks_stay_on_its_own_app() -> None:
    script = (
        "from examples.backends import django_app as site\n"
        "from celery import current_app\n"
        "import producer\n"
        "assert current_app.main == 'shop', current_app.main\n"
        "assert site.send_receipt.app.main == 'shop'\n"
        "assert producer.submit_prediction.app.main == 'laya'\n"
        "assert not any(name.startswith('laya.') for name in current_app.tasks)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
