"""Settings from the environment: what they mean, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from producer.app import celery_settings
from producer.checkpoints import CheckpointSource, parse_checkpoints, queue_of
from producer.settings import ProducerSettings
from worker.settings import WorkerSettings

Environment = Callable[..., None]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    def put(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def test_a_list_of_checkpoints_with_every_kind_of_source() -> None:
    assert parse_checkpoints(
        "english=/srv/a:b@c, multilingual=org/repo:sub/dir@v2 ,Papers=./here,more=org/more@main"
    ) == (
        CheckpointSource("english", "/srv/a:b@c"),
        CheckpointSource("multilingual", "org/repo", "sub/dir", "v2"),
        CheckpointSource("papers", "./here"),
        CheckpointSource("more", "org/more", None, "main"),
    )


def test_small_stands_for_the_two_small_checkpoints() -> None:
    assert parse_checkpoints("small,typed") == (
        CheckpointSource("english", small=True),
        CheckpointSource("multilingual", small=True),
        CheckpointSource("typed-decisions"),
    )


def test_a_directory_of_that_name_is_no_word_for_the_small_ones() -> None:
    assert parse_checkpoints("small=/srv/small") == (CheckpointSource("small", "/srv/small"),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no checkpoint"),
        (" , ", "names no checkpoint"),
        ("english,en=/x", "names 'english' twice"),
        ("small,english=/x", "names 'english' twice"),
        ("english=", "'english' has no source"),
        ("english=@main", "cannot read the source of 'english'"),
        ("english=repo:", "cannot read the source of 'english'"),
        ("english=repo@", "cannot read the source of 'english'"),
        ("a b=/x", "'a b' cannot be a checkpoint's name"),
        ("=/x", "'' cannot be a checkpoint's name"),
        (f"{'n' * 65}=/x", "cannot be a checkpoint's name"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused_by_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="LAYA_CHECKPOINTS") as refusal:
        parse_checkpoints(text)
    assert said in str(refusal.value)


def test_home_is_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (checkpoint,) = parse_checkpoints("mine=~/models/mine")
    assert checkpoint.is_path
    assert checkpoint.path == "/home/me/models/mine"


def test_nothing_said_means_the_published_checkpoints() -> None:
    settings = WorkerSettings()
    assert settings.names == ("english", "multilingual", "typed-decisions")
    assert settings.default_checkpoint == "multilingual"


def test_the_default_is_multilingual_where_it_is_registered_else_the_first(environment: Environment) -> None:
    environment(LAYA_CHECKPOINTS="papers=/p,english")
    assert ProducerSettings().default_checkpoint == "papers"
    environment(LAYA_CHECKPOINTS="papers=/p,multilingual")
    assert ProducerSettings().default_checkpoint == "multilingual"
    environment(LAYA_DEFAULT_MODEL="Papers")
    assert ProducerSettings().default_checkpoint == "papers"


def test_a_backend_needs_the_names_only_and_a_worker_the_sources(environment: Environment) -> None:
    environment(LAYA_CHECKPOINTS="english,papers")
    assert ProducerSettings().names == ("english", "papers")
    with pytest.raises(ValidationError, match="papers=/path or papers=repository"):
        WorkerSettings()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"LAYA_DEFAULT_MODEL": "nobody"}, "LAYA_DEFAULT_MODEL: unknown checkpoint 'nobody'"),
        ({"LAYA_PRELOAD": "english,nobody"}, "LAYA_PRELOAD: unknown checkpoint 'nobody'"),
        ({"LAYA_PRELOAD": "english,multilingual", "LAYA_MAX_LOADED": "1"}, "LAYA_MAX_LOADED holds 1"),
        ({"LAYA_MAX_LOADED": "0"}, "expected at least one checkpoint"),
        ({"LAYA_MAX_LOADED": "6 apples"}, "is no amount of memory"),
        ({"LAYA_MAX_PAYLOAD": "0"}, "greater than 0"),
        ({"LAYA_VISIBILITY_TIMEOUT": "soon"}, "valid integer"),
        ({"LAYA_BROKER_URL": "http://broker"}, "begins with redis://, rediss:// or sentinel://"),
        ({"LAYA_RESULT_URL": "results:6379"}, "begins with redis://, rediss:// or sentinel://"),
        ({"LAYA_BROKER_URL": "redis://a;redis://b"}, "expected one server, found several"),
        ({"LAYA_RESULT_URL": "rediss://a/0;rediss://b/0"}, "expected one server, found several"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    variables: dict[str, str], said: str, environment: Environment
) -> None:
    environment(**variables)
    with pytest.raises(ValidationError, match="validation error") as refusal:
        WorkerSettings()
    assert said in str(refusal.value)


def test_preloaded_names_are_the_registered_ones_each_once(environment: Environment) -> None:
    environment(LAYA_PRELOAD=" ml, multilingual ,en")
    assert WorkerSettings().preloaded == ("multilingual", "english")


def test_hooks_keep_their_order(environment: Environment) -> None:
    environment(LAYA_HOOKS="my.Redact, hooks.SkipCache,")
    assert WorkerSettings().hooks == ("my.Redact", "hooks.SkipCache")


def test_an_empty_variable_counts_as_unset(environment: Environment) -> None:
    environment(LAYA_HOOKS="", LAYA_DEVICE="", LAYA_CHECKPOINTS="")
    assert WorkerSettings() == WorkerSettings(hooks=())


def test_no_password_of_a_url_is_shown(environment: Environment) -> None:
    environment(LAYA_BROKER_URL="redis://:hunter2@host/0", LAYA_RESULT_URL="redis://:hunter2@other/0")
    assert "hunter2" not in repr(WorkerSettings())
    environment(LAYA_MAX_LOADED="many")
    with pytest.raises(ValidationError) as refusal:
        WorkerSettings()
    assert "hunter2" not in str(refusal.value)


def test_results_go_to_the_broker_s_server_unless_another_is_named(environment: Environment) -> None:
    environment(LAYA_BROKER_URL="redis://broker/0")
    assert ProducerSettings().results == "redis://broker/0"
    environment(LAYA_RESULT_URL="redis://results/1")
    assert ProducerSettings().results == "redis://results/1"


def test_both_sides_carry_the_same_visibility_timeout(environment: Environment) -> None:
    environment(LAYA_VISIBILITY_TIMEOUT="7")
    timeouts = [
        celery_settings(settings)["broker_transport_options"]["visibility_timeout"]
        for settings in (ProducerSettings(), WorkerSettings())
    ]
    assert timeouts == [7, 7]


def test_json_alone_travels() -> None:
    conf: dict[str, Any] = celery_settings(ProducerSettings())
    assert conf["accept_content"] == conf["result_accept_content"] == ["json"]
    assert conf["task_serializer"] == conf["result_serializer"] == "json"


def test_a_checkpoint_s_queue_has_its_name() -> None:
    assert queue_of("typed-decisions") == "laya.typed-decisions"


def test_a_path_of_this_directory_is_a_path(tmp_path: Path) -> None:
    assert parse_checkpoints(f"x={tmp_path}")[0].path == str(tmp_path)
