"""The Celery app of a backend: its own, light, and no business of the rest of the process."""

from __future__ import annotations

from typing import Any

import celery
import pytest

import producer
from producer.app import PRIORITY_STEPS, PredictionApp, app, celery_settings
from producer.results import ResultStore
from producer.settings import ProducerSettings
from producer.tasks import register


def test_it_is_never_the_process_s_current_app() -> None:
    assert celery.current_app._get_current_object() is not app


def test_a_backend_s_own_celery_app_gets_none_of_our_tasks() -> None:
    register(PredictionApp(ProducerSettings()))
    theirs = celery.Celery("theirs", set_as_current=False)
    assert not any(name.startswith("laya") for name in theirs.tasks)


def test_a_django_project_around_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "no.such.project")
    assert PredictionApp()._fixups == []


def test_the_tasks_have_names_that_read_well() -> None:
    assert producer.submit_prediction.name == "laya.submit_prediction"
    assert producer.submit_predictions.name == "laya.submit_predictions"


def test_settings_are_read_at_first_use_not_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    made = PredictionApp()
    monkeypatch.setenv("LAYA_BROKER_URL", "redis://elsewhere:1/0")
    assert made.conf.broker_url == "redis://elsewhere:1/0"


def test_two_apps_of_one_process_have_servers_of_their_own() -> None:
    one, two = (PredictionApp(ProducerSettings(broker_url=f"redis://{name}:1/0")) for name in ("one", "two"))
    tasks = [register(made)[0] for made in (one, two)]
    assert [task.app.conf.broker_url for task in tasks] == ["redis://one:1/0", "redis://two:1/0"]


def test_results_are_kept_by_our_store_on_their_own_server() -> None:
    made = PredictionApp(ProducerSettings(result_url="redis://results:2/3"))
    assert isinstance(made.backend, ResultStore)
    assert made.backend.as_uri() == "redis://results:2/3"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("task_acks_late", True),
        ("task_track_started", True),
        ("worker_prefetch_multiplier", 1),
        ("worker_disable_prefetch", True),
        ("worker_send_task_events", True),
        ("broker_connection_retry_on_startup", True),
        ("result_expires", 3600),
        ("task_default_queue", "laya"),
    ],
)
def test_celery_is_set_as_the_queue_needs_it(setting: str, value: Any) -> None:
    assert PredictionApp(ProducerSettings()).conf[setting] == value


def test_unacknowledged_messages_come_back_soon_after_the_visibility_timeout() -> None:
    options = celery_settings(ProducerSettings())["broker_transport_options"]
    assert (
        options["visibility_timeout"],
        options["unacked_restore_interval"],
        options["unacked_restore_throttle"],
    ) == (
        120,
        2,
        1,
    )


def test_priorities_lie_in_the_lists_that_a_stock_worker_reads() -> None:
    assert list(PRIORITY_STEPS) == [0, 3, 6, 9]


def test_the_eager_switch_of_the_environment_is_celery_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_TASK_ALWAYS_EAGER", "1")
    assert PredictionApp().conf.task_always_eager
