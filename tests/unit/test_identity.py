"""What makes checkpoints answer alike: known without a load, of what was loaded afterwards, and different whenever
anything differs that an answer follows from."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from laya import Agent, Router, digests
from laya.identity import CheckpointIdentity
from laya.simulated import write_checkpoint

GERMAN = {"de": {"temperature": [2.0, 2.0, 2.0]}}


@pytest.fixture
def checkpoint(golden_checkpoints: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a published checkpoint that a test may change."""
    return Path(shutil.copytree(golden_checkpoints["multilingual"], tmp_path / "multilingual"))


def router_of(path: Path, **options: Any) -> Router:
    return Router(models={"multilingual": str(path)}, device="cpu", **options)


def identity_of(path: Path, **options: Any) -> CheckpointIdentity:
    found = router_of(path, **options).identity("multilingual")
    assert found is not None
    return found


def append(path: Path, text: str) -> None:
    path.write_bytes(path.read_bytes() + text.encode())


class Hashed:
    """Which files were hashed, and how often."""

    def __init__(self) -> None:
        self.paths: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, file: Any, algorithm: str) -> Any:
        with self._lock:
            self.paths[Path(file.name).name] += 1
        return hashlib.new(algorithm, file.read())


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Hashed:
    counter = Hashed()
    monkeypatch.setattr(digests.hashlib, "file_digest", counter)
    return counter


@pytest.mark.parametrize("options", [{}, {"dtype": "bf16"}, {"lang_temperatures": GERMAN}], ids=["plain", "bf16", "de"])
def test_it_is_known_before_a_load_as_it_is_after_it(checkpoint: Path, options: dict[str, Any]) -> None:
    router = router_of(checkpoint, agent_kwargs=options)
    foreseen = router.identity("multilingual")
    assert router.loaded == []
    assert foreseen is not None
    assert router.load("multilingual").identity == router.identity("multilingual") == foreseen


def test_a_simulated_checkpoint_has_one_too(tmp_path: Path) -> None:
    router = router_of(write_checkpoint(tmp_path / "simulated"))
    assert router.identity("multilingual") == router.load("multilingual").identity is not None


def test_checkpoints_of_the_same_files_are_one_wherever_they_lie(checkpoint: Path, tmp_path: Path) -> None:
    elsewhere = Path(shutil.copytree(checkpoint, tmp_path / "elsewhere"))
    (elsewhere / "README.md").write_text("what lies beside a checkpoint is no part of it", encoding="utf-8")
    assert identity_of(elsewhere) == identity_of(checkpoint)
    assert identity_of(elsewhere).digest == identity_of(checkpoint).digest


@pytest.mark.parametrize(
    "file",
    ["rl_agent_config.json", "model.safetensors", "encoder/config.json", "tokenizer/tokenizer.json"],
)
def test_a_change_in_any_file_is_another_checkpoint(checkpoint: Path, file: str) -> None:
    before = identity_of(checkpoint)
    append(checkpoint / file, "\n")
    assert identity_of(checkpoint) != before


def test_a_file_more_is_another_checkpoint(checkpoint: Path) -> None:
    before = identity_of(checkpoint)
    (checkpoint / "tokenizer" / "added_tokens.json").write_text("{}", encoding="utf-8")
    assert identity_of(checkpoint) != before


@pytest.mark.parametrize(
    ("option", "field"),
    [({"dtype": "bf16"}, "dtype"), ({"lang_temperatures": GERMAN}, "calibration")],
    ids=["dtype", "lang_temperatures"],
)
def test_what_a_load_makes_of_the_files_counts(checkpoint: Path, option: dict[str, Any], field: str) -> None:
    plain, other = identity_of(checkpoint), identity_of(checkpoint, agent_kwargs=option)
    assert getattr(plain, field) != getattr(other, field)
    assert plain.digest != other.digest


def test_temperatures_that_change_in_place_are_seen(checkpoint: Path) -> None:
    temperatures = {"de": {"temperature": [2.0, 2.0, 2.0]}}
    router = router_of(checkpoint, agent_kwargs={"lang_temperatures": temperatures})
    before = router.identity("multilingual")
    temperatures["de"]["temperature"][0] = 3.0
    assert router.identity("multilingual") != before


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(CheckpointIdentity)])
def test_every_field_is_in_the_digest(field: str) -> None:
    one = CheckpointIdentity("sha256:1", "fp32", "2", 512, 192, ())
    value = {"max_len": 1, "head_max_len": 1, "languages": ("de",)}.get(field, "other")
    assert dataclasses.replace(one, **{field: value}).digest != one.digest


def test_only_a_language_with_temperatures_makes_a_difference(checkpoint: Path) -> None:
    identity = identity_of(checkpoint, agent_kwargs={"lang_temperatures": GERMAN})
    assert [identity.language(lang) for lang in ("de", "de-AT", "fr", "", None)] == ["de", "de", None, None, None]


def test_a_resident_checkpoint_is_what_was_loaded_whatever_becomes_of_its_files(checkpoint: Path) -> None:
    router = router_of(checkpoint)
    loaded = router.load("multilingual").identity
    append(checkpoint / "tokenizer" / "tokenizer.json", "\n")
    assert router.identity("multilingual") == loaded
    router.unload("multilingual")
    assert router.identity("multilingual") != loaded


def test_a_name_that_points_elsewhere_is_another_checkpoint_once_the_old_one_is_gone(
    checkpoint: Path, golden_checkpoints: dict[str, Path]
) -> None:
    router = router_of(checkpoint)
    first = router.load("multilingual").identity
    router.register("multilingual", str(golden_checkpoints["english"]))
    assert router.identity("multilingual") == first
    router.unload()
    second = router.identity("multilingual")
    assert second is not None
    assert second.content != first.content


def test_files_that_change_during_a_load_leave_it_unknown(checkpoint: Path) -> None:
    class Meddling(dict[str, Any]):
        def items(self) -> Any:
            append(checkpoint / "tokenizer" / "tokenizer_config.json", "\n")
            return super().items()

    assert Agent(str(checkpoint), device="cpu", lang_temperatures=Meddling(GERMAN)).identity is None


def test_budgets_that_are_changed_on_the_agent_are_its_budgets(checkpoint: Path) -> None:
    agent = Agent(str(checkpoint), device="cpu")
    before = agent.identity
    agent.cfg["max_len"] = 64
    assert before is not None
    assert agent.identity == dataclasses.replace(before, max_len=64)


@pytest.mark.parametrize("what", ["no directory", "no configuration", "another digest", "a device that is not there"])
def test_it_is_unknown_where_a_load_would_be_refused(checkpoint: Path, what: str) -> None:
    options: dict[str, Any] = {}
    if what == "no directory":
        shutil.rmtree(checkpoint)
    elif what == "no configuration":
        (checkpoint / "rl_agent_config.json").unlink()
    elif what == "another digest":
        options = {"sha256_digests": {"multilingual": {"model.safetensors": "0" * 64}}}
    else:
        options = {"agent_kwargs": {"device": "cuda:99"}}
    assert router_of(checkpoint, **options).identity("multilingual") is None


def test_digests_that_a_load_checks_are_no_obstacle_where_they_are_right(checkpoint: Path) -> None:
    digest = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    router = router_of(checkpoint, sha256_digests={"multilingual": {"model.safetensors": digest.upper()}})
    assert router.identity("multilingual") == identity_of(checkpoint)


def test_a_name_that_nobody_registered_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown checkpoint 'nobody'"):
        Router(models={}).identity("nobody")


def test_an_attached_agent_is_known_by_its_own_identity_if_it_has_one(checkpoint: Path) -> None:
    router = Router(models={})
    agent = router.attach("mine", Agent(str(checkpoint), device="cpu"))
    router.attach("stub", object())
    assert router.identity("mine") == agent.identity is not None
    assert router.identity("stub") is None
    router.unload("mine")
    assert router.identity("mine") is None


def test_threads_that_ask_at_once_share_one_reading_of_the_files(
    checkpoint: Path, hashed: Hashed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "RACY_NS", -1)  # these files were written a moment ago
    router, begin, found = router_of(checkpoint), threading.Barrier(8), []

    def ask() -> None:
        begin.wait(30)
        found.append(router.identity("multilingual"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    router.load("multilingual")
    router.unload()
    router.identity("multilingual")
    assert set(hashed.paths.values()) == {1}


def test_files_that_changed_a_moment_ago_are_read_again(checkpoint: Path, hashed: Hashed) -> None:
    stamps = digests.stamps_of(checkpoint)
    first, second = digests.content_digest(checkpoint, stamps), digests.content_digest(checkpoint, stamps)
    assert first == second
    assert hashed.paths["model.safetensors"] == 2


def test_a_file_that_is_replaced_while_it_is_read_has_no_digest(checkpoint: Path) -> None:
    stamps = digests.stamps_of(checkpoint)
    append(checkpoint / "model.safetensors", "x")
    with pytest.raises(digests.FileChanged, match=r"model\.safetensors was changed"):
        digests.content_digest(checkpoint, stamps)


class Seen:
    """The language that each event found in its context."""

    def __init__(self, becomes: Any = None) -> None:
        self.langs: list[tuple[str, Any]] = []
        self._becomes = becomes

    def on_route(self, ctx: Any) -> None:
        self.langs.append(("route", ctx.lang))

    def on_predict_start(self, ctx: Any) -> None:
        self.langs.append(("start", ctx.lang))
        if self._becomes is not None:
            ctx.lang = self._becomes

    def on_predict_end(self, ctx: Any) -> None:
        self.langs.append(("end", ctx.lang))


@pytest.fixture(scope="module")
def german(golden_checkpoints: dict[str, Path]) -> Router:
    return Router(
        models={"multilingual": str(golden_checkpoints["multilingual"])},
        device="cpu",
        agent_kwargs={"lang_temperatures": {"de": {"temperature": [5.0, 5.0, 5.0]}}},
    )


ASKED = {"q": {"type": "choice", "instructions": "Which?", "criteria": ["one", "two", "three"]}}


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a batch"])
def test_hooks_see_the_language_that_a_call_names(german: Router, together: bool) -> None:
    seen = Seen()
    if together:
        german.predict_batch([{"state": "x", "questions": ASKED, "lang": "de-AT"}], hooks=seen)
    else:
        german.predict("x", ASKED, lang="de-AT", hooks=seen)
    assert seen.langs == [("route", "de-AT"), ("start", "de-AT"), ("end", "de-AT")]


def test_hooks_of_an_agent_see_the_language_that_a_call_names(german: Router) -> None:
    seen = Seen()
    german.load("multilingual").predict("x", ASKED, lang="fr", hooks=seen)
    assert seen.langs == [("start", "fr"), ("end", "fr")]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a batch"])
def test_a_language_that_a_start_hook_assigns_is_that_of_the_call(german: Router, together: bool) -> None:
    def answers(**options: Any) -> Any:
        request = {"state": "x", "questions": ASKED, "model": "multilingual"}
        if together:
            return german.predict_batch([request], **options)[0]["answers"]
        return german.predict(**request, **options)["answers"]

    plain, assigned = answers(), answers(hooks=Seen(becomes="de"))
    named = german.predict("x", ASKED, model="multilingual", lang="de")["answers"]
    assert assigned == named != plain


def test_a_language_that_is_no_text_is_refused_wherever_it_comes_from(german: Router) -> None:
    with pytest.raises(TypeError, match="lang must be a language code"):
        german.load("multilingual").predict("x", ASKED, hooks=Seen(becomes=7))
