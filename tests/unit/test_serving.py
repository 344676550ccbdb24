"""How a worker's service is put together from settings, and what its failures become."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from celery.concurrency import prefork, solo, thread

from laya import BaseHook
from laya.rows import Row
from laya.simulated import SimulatedKind, write_checkpoint
from producer.checkpoints import parse_checkpoints
from producer.errors import DeadlineExceeded, InvalidRequest, LayaError, PredictionFailed, UnknownCheckpoint
from producer.request import PredictionRequest
from worker.configured_hooks import HookUnavailable, make_hook
from worker.pool import PoolRefused, asked_pool, check_pool
from worker.serving import Serving, check_deadline, translated
from worker.serving_router import ServingRouter, sources_of
from worker.settings import WorkerSettings

QUESTIONS: dict[str, Any] = {"angry": {"type": "noul", "instructions": "The customer is angry."}}


class Skipping(BaseHook):
    """Answers everything itself, so that no checkpoint is needed."""

    def on_predict_start(self, ctx: Any) -> None:
        if ctx.states[0] == "fail":
            raise RuntimeError("no answer for this one")
        ctx.skip([{"answers": {}, "usage": {}, "said": ctx.states[0]}])


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Serving]:
    def make(**settings: str) -> Serving:
        for name, value in {"LAYA_CHECKPOINTS": "english=/nowhere,multilingual=/nowhere", **settings}.items():
            monkeypatch.setenv(name, value)
        service = Serving(WorkerSettings())
        service.router.add_hook(Skipping())
        return service

    return make


@pytest.mark.parametrize(
    ("command_line", "pool"),
    [
        ("celery -A worker worker", None),
        ("celery worker -P prefork", prefork.TaskPool),
        ("celery worker --pool processes", prefork.TaskPool),
        ("celery worker --pool=solo -c 1", solo.TaskPool),
        ("celery worker -Pthreads", thread.TaskPool),
        ("celery worker -P prefork -P threads", thread.TaskPool),
        ("celery worker -P", None),
        ("celery worker -P nonsense", None),
    ],
)
def test_the_pool_that_a_command_line_asks_for(command_line: str, pool: type | None) -> None:
    assert asked_pool(command_line.split()) is pool


@pytest.mark.parametrize("pool", [thread.TaskPool, solo.TaskPool])
def test_threads_and_solo_may_serve(pool: type) -> None:
    check_pool(pool)


def test_a_forking_pool_may_not() -> None:
    with pytest.raises(PoolRefused, match="prefork"):
        check_pool(prefork.TaskPool)


def test_sources_are_what_a_router_takes() -> None:
    listed = parse_checkpoints("english=/srv/en,papers=org/repo:sub@main,more=org/more,multilingual")
    assert sources_of(listed) == {
        "english": "/srv/en",
        "papers": ("org/repo", "sub"),
        "more": ("org/more", None),
        "multilingual": ("convaiinnovations/laya", "multilingual"),
    }


def test_the_router_of_a_worker_has_its_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAYA_CHECKPOINTS", f"english={tmp_path},papers=org/repo@v2")
    monkeypatch.setenv("LAYA_MAX_LOADED", "3")
    monkeypatch.setenv("LAYA_DEFAULT_MODEL", "papers")
    router = ServingRouter(WorkerSettings())
    assert (router.max_loaded, router.default, router.revisions) == (3, "papers", {"papers": "v2"})
    assert router.defer_load
    assert router.prefer_resident


def test_a_built_in_checkpoint_that_is_not_registered_is_unknown(serving: Callable[..., Serving]) -> None:
    service = serving(LAYA_CHECKPOINTS="multilingual=/nowhere")
    with pytest.raises(UnknownCheckpoint):
        service.predict(PredictionRequest("hello", QUESTIONS, {"model": "english"}), None)
    english = "I was charged twice and would like my money back, please."
    assert service.predict(PredictionRequest(english, QUESTIONS), None)["routing"]["model"] == "multilingual"


def test_a_hook_that_fails_is_a_failed_prediction_with_its_cause(serving: Callable[..., Serving]) -> None:
    with pytest.raises(PredictionFailed, match="no answer for this one") as failure:
        serving().predict(PredictionRequest("fail", QUESTIONS), None)
    assert failure.value.cause == "RuntimeError"
    assert isinstance(failure.value.__cause__, RuntimeError)


def test_a_request_past_its_deadline_reaches_no_router(serving: Callable[..., Serving]) -> None:
    with pytest.raises(DeadlineExceeded):
        serving().predict(PredictionRequest("fail", QUESTIONS), time.time() - 1)


def test_a_batch_with_a_failure_answers_the_others(serving: Callable[..., Serving]) -> None:
    items = [PredictionRequest(state, QUESTIONS) for state in ("a", "fail", "b")]
    first, failed, last = serving().predict_many([*items[:2], items[2]], None)
    assert (first["said"], last["said"]) == ("a", "b")
    assert isinstance(LayaError.from_entry(failed), PredictionFailed)


def test_a_deadline_ahead_is_no_error() -> None:
    check_deadline(None)
    check_deadline(time.time() + 60)


@pytest.mark.parametrize("path", ["nodots", "no.such.module", "pathlib.NoSuchClass", "json.loads"])
def test_a_hook_that_cannot_be_made_is_named(path: str) -> None:
    with pytest.raises(HookUnavailable, match=path):
        make_hook(path)


def test_a_hook_path_may_name_a_factory() -> None:
    assert make_hook("collections.OrderedDict") == {}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("question 'angry': 3 of its 9 option markers fit"), InvalidRequest),
        (TypeError("question 'angry': not today"), InvalidRequest),
        (ValueError("something of a hook's"), PredictionFailed),
        (RuntimeError("question 'angry': not the library's word"), PredictionFailed),
        (MemoryError(), PredictionFailed),
        (SystemExit(3), PredictionFailed),
        (DeadlineExceeded(), DeadlineExceeded),
    ],
)
def test_what_an_error_becomes(error: BaseException, kind: type[LayaError]) -> None:
    assert type(translated(error, QUESTIONS)) is kind


def test_a_refusal_of_the_library_s_keeps_the_question() -> None:
    refusal = translated(ValueError("question 'angry': no"), QUESTIONS)
    assert isinstance(refusal, InvalidRequest)
    assert refusal.question == "angry"


@pytest.fixture
def computing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serving:
    """A service whose only checkpoint is simulated, and takes no time."""
    path = write_checkpoint(tmp_path / "simulated", pass_ms=0, row_ms=0, device=str(tmp_path))
    monkeypatch.setenv("LAYA_CHECKPOINTS", f"english={path}")
    monkeypatch.setenv("LAYA_DEFAULT_MODEL", "english")
    return Serving(WorkerSettings())


def failing_once(fails: Callable[[Sequence[Row]], Exception | None]) -> Callable[..., Any]:
    """A launch of the simulated device that fails as long as `fails` says so."""
    launch = SimulatedKind.launch

    def launched(kind: SimulatedKind, rows: Sequence[Row]) -> Any:
        error = fails(rows)
        if error is not None:
            raise error
        return launch(kind, rows)

    return launched


def test_one_failing_request_of_64_costs_few_passes(computing: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(rows: Sequence[Row]) -> Exception | None:
        bad = any("bad question" in row.question.instructions for row in rows)
        return ZeroDivisionError("no answer for this one") if bad else None

    monkeypatch.setattr(SimulatedKind, "launch", failing_once(fails))
    bad = {"angry": {"type": "noul", "instructions": "A bad question."}}
    items = [PredictionRequest(f"state {place:02d}", bad if place == 20 else QUESTIONS) for place in range(64)]
    results = computing.predict_many(items, None)
    assert [place for place, result in enumerate(results) if "answers" not in result] == [20]
    assert isinstance(LayaError.from_entry(results[20]), PredictionFailed)
    counted = computing.passes.snapshot()
    # One by one would be 63 passes and more; halves are tried six times, and each may be a pass or two.
    assert counted.passes <= 30
    assert counted.rows <= 64 * 4


def test_passes_that_run_out_of_memory_are_counted(computing: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [MemoryError("does not fit")]
    monkeypatch.setattr(SimulatedKind, "launch", failing_once(lambda rows: left.pop() if left else None))
    four = {f"q{number}": QUESTIONS["angry"] for number in range(4)}
    assert len(computing.predict(PredictionRequest("state", four), None)["answers"]) == 4
    counted = computing.passes.snapshot()
    assert (counted.out_of_memory, counted.failed, counted.passes, counted.rows) == (1, 1, 2, 4)
    assert 0 < counted.budget < WorkerSettings().max_batch_tokens
    assert counted.tokens == counted.padded


@pytest.mark.parametrize("asks", [True, False])
def test_checkpoints_are_known_before_a_request_wants_to_know_them_where_a_hook_will_ask(
    serving: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    service = serving()
    if asks:
        service.router.hooks[-1].asks_identities = True
    names: list[str] = []
    monkeypatch.setattr(service.router, "identity", names.append)
    service.start()
    for thread_ in threading.enumerate():
        if thread_.name == "laya-identities":
            thread_.join(30)
    assert names == (["english", "multilingual"] if asks else [])
