"""What the metrics hook makes of the events of real calls, read as Prometheus would read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hooks import PrometheusMetrics
from laya import Router
from laya.batching import Batching
from laya.simulated import write_checkpoint

QUESTIONS = {"urgent": {"type": "noul", "instructions": "Is it urgent?"}}


class Watched:
    """A Router of two simulated checkpoints with the hook on it."""

    def __init__(self, home: Path, **options: Any) -> None:
        self.registry = CollectorRegistry()
        self.metrics = PrometheusMetrics(self.registry)
        names = ("english", "multilingual")
        self.router = Router(
            models={name: str(write_checkpoint(home / name, pass_ms=1, device=str(home))) for name in names},
            device="cpu",
            default="english",
            hooks=self.metrics,
            agent_kwargs={"batching": Batching(observe=self.metrics.observe_pass)},
            **options,
        )

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path, max_loaded=1)


def test_requests_are_counted_by_checkpoint_and_outcome(watched: Watched) -> None:
    watched.router.predict("hello", QUESTIONS, model="english")
    watched.router.predict("hello", QUESTIONS, model="english")
    hit = {"model": "m", "answers": {"urgent": {"type": "noul", "noul": 0.5}}, "usage": {}}
    watched.router.predict("hello", QUESTIONS, model="english", on_predict_start=lambda ctx: ctx.skip(hit))
    with pytest.raises(ValueError, match="maybe"):
        watched.router.predict("hello", {"urgent": {"type": "maybe"}}, model="english")
    watched.router.predict("hello", {}, model="english")
    counted = {
        outcome: watched.value("laya_requests_total", checkpoint="english", outcome=outcome)
        for outcome in ("answered", "hit", "refused", "empty")
    }
    assert counted == {"answered": 2, "hit": 1, "refused": 1, "empty": 1}


def test_a_request_that_a_hook_fails_is_failed_and_one_out_of_time_is_late(watched: Watched) -> None:
    for error in (RuntimeError("no"), TimeoutError("late")):

        def fail(_: Any, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            watched.router.predict("hello", QUESTIONS, model="english", on_predict_start=fail)
    assert watched.value("laya_requests_total", checkpoint="english", outcome="failed") == 1
    assert watched.value("laya_requests_total", checkpoint="english", outcome="late") == 1


def test_each_part_of_a_request_is_timed(watched: Watched) -> None:
    watched.router.predict("hello", QUESTIONS, model="english")
    for phase in ("load", "tokenise", "batch_wait", "forward"):
        assert watched.value("laya_phase_seconds_count", phase=phase) == 1, phase
    assert watched.value("laya_request_seconds_count", checkpoint="english") == 1
    forward = watched.value("laya_phase_seconds_sum", phase="forward")
    assert forward is not None
    assert forward >= 0.001


def test_loads_evictions_and_what_is_resident(watched: Watched) -> None:
    for name in ("english", "multilingual", "english"):
        watched.router.predict("hello", QUESTIONS, model=name)
    assert watched.value("laya_checkpoint_loads_total", checkpoint="english") == 2
    assert watched.value("laya_checkpoint_evictions_total", checkpoint="english") == 1
    assert watched.value("laya_checkpoint_resident", checkpoint="english") == 1
    assert watched.value("laya_checkpoint_resident", checkpoint="multilingual") == 0
    assert watched.value("laya_checkpoint_load_seconds_count", checkpoint="english") == 2


def test_rows_tokens_and_padding_of_passes(watched: Watched) -> None:
    watched.router.predict_batch(
        [{"state": text, "questions": QUESTIONS, "model": "english"} for text in ("short", "long " * 60)]
    )
    passes = watched.value("laya_pass_rows_count")
    assert watched.value("laya_pass_rows_sum") == 2
    assert watched.value("laya_pass_seconds_count") == passes
    own, padding = (watched.value("laya_pass_tokens_total", kind=kind) for kind in ("own", "padding"))
    assert own == watched.value("laya_input_tokens_total", checkpoint="english")
    assert padding is not None
    assert (padding > 0) == (passes == 1), "only rows of unlike length that share a pass are padded"


def test_answers_are_counted_by_what_the_gate_made_of_them(watched: Watched) -> None:
    watched.router.predict("hello", QUESTIONS, model="english")
    watched.router.predict("hello", QUESTIONS, model="english", min_confidence=1.0)
    watched.router.predict("hello", QUESTIONS, model="english", min_confidence=0.0)
    counted = {
        word: watched.value("laya_answers_total", checkpoint="english", abstention=word)
        for word in ("none", "abstained", "passed")
    }
    assert counted == {"none": 1, "abstained": 1, "passed": 1}


def test_two_hooks_may_share_a_registry(watched: Watched) -> None:
    second = PrometheusMetrics(watched.registry)
    second.observe_phase("queue", 0.2)
    watched.metrics.observe_phase("queue", 0.3)
    assert watched.value("laya_phase_seconds_count", phase="queue") == 2


def test_no_text_of_a_request_becomes_a_label(watched: Watched) -> None:
    secret = "4111-1111-1111-1111"
    watched.router.predict(secret, {secret: {"type": "noul", "instructions": secret}}, model="english")
    with pytest.raises(ValueError, match="type"):
        watched.router.predict(secret, {secret: {"type": secret}}, model="english")
    assert secret.encode() not in generate_latest(watched.registry)


def test_results_of_any_shape_are_survived(watched: Watched) -> None:
    for odd in ({"answers": ["no mapping"]}, {"answers": {"urgent": "no mapping"}}, {"answers": {}, "usage": 7}):
        watched.router.predict("x", QUESTIONS, model="english", on_predict_start=lambda ctx, odd=odd: ctx.skip(odd))
    assert watched.value("laya_requests_total", checkpoint="english", outcome="hit") == 3
