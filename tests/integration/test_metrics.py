"""A worker's figures as Prometheus reads them, from a real worker over HTTP."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from laya.simulated import write_checkpoint
from producer.errors import PredictionFailed
from tests.integration.conftest import Backend, WorkerProcess
from tests.waiting import wait_until

SECRET = "4111-1111-1111-1111"
QUESTIONS = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("checkpoints")
    names = ("english", "multilingual")
    return ",".join(f"{name}={write_checkpoint(home / name, pass_ms=2, device='metrics')}" for name in names)


@pytest.fixture(scope="module")
def worker(make_worker: Callable[..., WorkerProcess]) -> WorkerProcess:
    return make_worker(
        "-c",
        "4",
        LAYA_METRICS_PORT="0",
        LAYA_HOOKS="queue_hooks.Trouble,queue_hooks.Counting,hooks.SkipCache",
        LAYA_CACHE_BUDGET_MS="2000",  # the machine is shared, and a look-up that takes long is none
        LAYA_PRELOAD="english",
    ).start()


class Page:
    """What the worker's page says now."""

    def __init__(self, worker: WorkerProcess) -> None:
        found = re.search(r"Metrics at (http://127\.0\.0\.1:\d+/metrics)", worker.text())
        assert found is not None, worker.text()[-2000:]
        with urllib.request.urlopen(found[1], timeout=10) as answer:
            self.text = answer.read().decode()
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples.get((name, frozenset(labels.items())), 0.0)


@pytest.fixture(scope="module")
def page(worker: WorkerProcess, backend: Backend) -> Page:
    """The page after three answers, one failure and a message of two."""
    for number in range(3):
        backend.predict(f"{SECRET} {number}", QUESTIONS, model="english")
    with pytest.raises(PredictionFailed):
        backend.predict("raise RuntimeError", QUESTIONS, model="english")
    many = [{"state": f"{SECRET} {n}", "questions": QUESTIONS, "model": "multilingual"} for n in range(2)]
    backend.submit_predictions.delay(many).get(timeout=30)
    wait_until(lambda: Page(worker).value("laya_in_flight") == 0, what="an idle worker")
    return Page(worker)


def test_requests_by_checkpoint_and_outcome(page: Page) -> None:
    assert page.value("laya_requests_total", checkpoint="english", outcome="answered") == 3
    assert page.value("laya_requests_total", checkpoint="english", outcome="failed") == 1
    assert page.value("laya_requests_total", checkpoint="multilingual", outcome="answered") == 2


@pytest.mark.parametrize(("phase", "count"), [("queue", 5), ("load", 2), ("tokenise", 5), ("forward", 5)])
def test_each_part_of_the_way_is_timed(page: Page, phase: str, count: int) -> None:
    # Four messages of one request, whose checkpoint is preloaded, and one of two, which wait and load together.
    assert page.value("laya_phase_seconds_count", phase=phase) == count


def test_passes_and_their_rows(page: Page) -> None:
    assert page.value("laya_pass_rows_sum") == 5
    assert page.value("laya_pass_tokens_total", kind="own") > 0


def test_what_is_in_memory_preloaded_or_not(page: Page) -> None:
    for name in ("english", "multilingual"):
        assert page.value("laya_checkpoint_resident", checkpoint=name) == 1
        assert page.value("laya_checkpoint_loads_total", checkpoint=name) == 1
        assert page.value("laya_checkpoint_loading", checkpoint=name) == 0


def test_the_queues_and_the_worker_itself(page: Page) -> None:
    assert ("laya_queue_depth", frozenset({("checkpoint", "english")})) in page.samples
    assert ("laya_queue_oldest_seconds", frozenset({("checkpoint", "english")})) in page.samples
    assert page.value("laya_pool_threads") == 4
    assert page.value("laya_redeliveries_total", outcome="poisoned") == 0


def test_no_text_of_a_request_is_on_the_page(page: Page) -> None:
    assert SECRET not in page.text
    assert "urgent" not in page.text


def test_labels_take_few_values(page: Page) -> None:
    ours = [labels for name, labels in page.samples if name.startswith("laya_")]
    assert {label for labels in ours for label, _ in labels} <= {
        *("checkpoint", "outcome", "phase", "abstention", "kind", "reason", "le", "device", "what", "direction")
    }


def test_a_port_that_is_taken_ends_the_worker_with_one_line(
    worker: WorkerProcess, page: Page, make_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    found: Any = re.search(r"Metrics at http://127\.0\.0\.1:(\d+)", worker.text())
    second = make_worker(LAYA_METRICS_PORT=found[1]).launch()
    assert second.exit_code(60) != 0
    assert f"LAYA_METRICS_PORT: 127.0.0.1:{found[1]} cannot be opened" in second.text()
    assert "Traceback" not in second.text()


def test_no_series_is_told_twice(page: Page) -> None:
    assert [name for name, _ in page.samples if name.endswith("_created")] == []


def test_the_cache_is_told_by_what_it_did(page: Page) -> None:
    # A call that a hook refuses before the cache's turn is none of its own; the others were new.
    assert page.value("laya_cache_total", what="misses") == 5
    assert page.value("laya_cache_total", what="hits") == 0
    assert page.value("laya_cache_open") == 0
