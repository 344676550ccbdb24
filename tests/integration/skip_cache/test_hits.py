"""What a hit of the skip cache is, and what is none: in this process, with a real server behind it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from hooks import SkipCache
from hooks.scope import Scope, asking
from laya import Agent, PredictContext, Router
from tests.integration.skip_cache.watched import GOLDEN, STATE, MakeCache, Seen, entries, hits_after, same

# --- what a hit is ---

WAYS_OF_ASKING: list[dict[str, Any]] = [
    {"model": "multilingual"},
    {"lang": "fr", "min_confidence": 0.99},
    {"lang_guess": "de", "min_confidence": {"noul:2": 0.2, "default": 0.7}},
    {"min_confidence": 0.0},
    {},
]


@pytest.mark.parametrize("asked", WAYS_OF_ASKING)
def test_a_hit_of_a_router_is_what_a_miss_would_have_returned(
    asked: dict[str, Any], cache: SkipCache, make_router: Callable[..., Router], questions: dict[str, Any]
) -> None:
    router, bare = make_router(cache), make_router()
    router.predict(STATE, questions, model="multilingual")
    assert cache.flush()
    expected = bare.predict(STATE, questions, **asked)
    (in_batch,) = router.predict_batch([{"state": STATE, "questions": questions, **asked}])
    assert same(router.predict(STATE, questions, **asked), expected)
    assert same(in_batch, expected)
    assert (cache.stats().hits, cache.stats().misses) == (2, 1)


def test_a_hit_of_an_agent_is_what_a_miss_would_have_returned(
    cache: SkipCache, agent: Agent, questions: dict[str, Any]
) -> None:
    strange = {
        7: {"type": "choice", "instructions": "Which?", "criteria": [1, "1", True and 2.5, "é\ud800"]},
        **questions,
    }
    for asked in ({}, {"min_confidence": 0.9}):
        expected = agent.predict(STATE, strange, **asked)
        assert same(agent.predict(STATE, strange, hooks=cache, **asked), expected)
        assert cache.flush()
    assert same(agent.predict(STATE, strange, hooks=cache), agent.predict(STATE, strange))
    assert (cache.stats().hits, cache.stats().misses) == (2, 1)


def test_a_hit_is_what_a_real_checkpoint_computed_and_another_precision_is_no_hit(
    cache: SkipCache, questions: dict[str, Any]
) -> None:
    def ask(**options: Any) -> Any:
        router = Router(models={"multilingual": str(GOLDEN / "multilingual")}, device="cpu", defer_load=True, **options)
        answer = router.predict(STATE, questions, min_confidence=0.5)
        assert cache.flush()
        return answer

    computed = ask()
    assert same(ask(hooks=cache), computed)
    assert same(ask(hooks=cache), computed)
    ask(hooks=cache, agent_kwargs={"dtype": "bf16"})
    assert (cache.stats().hits, cache.stats().misses) == (1, 2)


def test_an_agent_s_states_are_all_known_or_all_computed(
    cache: SkipCache, agent: Agent, questions: dict[str, Any]
) -> None:
    seen = Seen()
    for states in (["one"], ["one", "two"], ["one", "two"], ["two"]):
        answers = agent.predict_batch(states, questions, hooks=[cache, seen])
        assert same(answers, agent.predict_batch(states, questions))
        assert cache.flush()
    assert seen.forwards == 2
    assert (cache.stats().hits, cache.stats().misses) == (2, 2)


def test_a_hit_is_a_copy(cache: SkipCache, make_router: Callable[..., Router], questions: dict[str, Any]) -> None:
    router = make_router(cache)
    expected = copy.deepcopy(router.predict(STATE, questions))
    assert cache.flush()
    for _ in range(2):
        answer = router.predict(STATE, questions)
        assert same(answer, expected)
        answer["answers"].clear()


def test_a_hit_for_a_checkpoint_that_is_not_resident_loads_and_evicts_nothing(
    make_cache: MakeCache, fast: dict[str, str], questions: dict[str, Any]
) -> None:
    first, seen = make_cache(), Seen()
    Router(models=fast, device="cpu", hooks=first, defer_load=True).predict(STATE, questions, model="multilingual")
    assert first.flush()
    router = Router(models=fast, device="cpu", hooks=[make_cache(), seen], defer_load=True, max_loaded=1)
    router.predict(STATE, questions, model="typed-decisions")
    request = {"state": STATE, "questions": questions, "model": "multilingual"}
    router.predict(**request)
    router.predict_batch([request, request])
    assert (seen.loads, seen.evictions, router.loaded) == (["typed-decisions"], [], ["typed-decisions"])


# --- what is no hit ---


@pytest.fixture
def copied(fast: dict[str, str], tmp_path: Path) -> Path:
    shutil.copytree(fast["multilingual"], tmp_path / "copy")
    return tmp_path / "copy"


def test_the_same_files_elsewhere_are_a_hit_and_any_other_file_is_none(
    cache: SkipCache, fast: dict[str, str], copied: Path, questions: dict[str, Any]
) -> None:
    def ask(path: str | Path) -> int:
        router = Router(models={"multilingual": str(path)}, device="cpu", hooks=cache, defer_load=True)
        return hits_after(cache, router, questions)

    assert [ask(fast["multilingual"]), ask(copied)] == [0, 1]
    config = copied / "rl_agent_config.json"
    config.write_text(config.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert [ask(copied), ask(copied), ask(fast["multilingual"])] == [0, 1, 1]


def test_a_name_that_is_pointed_elsewhere_is_no_hit(
    cache: SkipCache, fast: dict[str, str], questions: dict[str, Any]
) -> None:
    router = Router(models=fast, device="cpu", hooks=cache, defer_load=True)
    assert hits_after(cache, router, questions) == 0
    router.register("multilingual", fast["typed-decisions"])
    assert hits_after(cache, router, questions) == 1  # what is resident stays and answers
    router.unload()
    assert hits_after(cache, router, questions) == 0


def test_an_answer_from_other_files_than_were_foreseen_is_not_kept(
    cache: SkipCache, copied: Path, client: redis.Redis, namespace: str, questions: dict[str, Any]
) -> None:
    config = copied / "rl_agent_config.json"

    def replaced(_: PredictContext) -> None:
        config.write_text(config.read_text(encoding="utf-8") + "\n", encoding="utf-8")

    router = Router(models={"multilingual": str(copied)}, device="cpu", hooks=cache, defer_load=True)
    router.predict(STATE, questions, model="multilingual", on_predict_start=replaced)
    assert cache.flush()
    assert entries(client, namespace) == []


def test_budgets_and_languages_with_temperatures_are_told_apart(
    cache: SkipCache, fast: dict[str, str], questions: dict[str, Any]
) -> None:
    router = Router(
        models=fast,
        device="cpu",
        hooks=cache,
        agent_kwargs={"lang_temperatures": {"de": {"temperature": [2.0, 2.0, 2.0]}}},
    )
    ways: list[dict[str, Any]] = [{}, {"max_len": 80}, {"head_max_len": 100}, {"lang": "de"}]
    assert [hits_after(cache, router, questions, **asked) for asked in ways] == [0, 0, 0, 0]
    assert [hits_after(cache, router, questions, **asked) for asked in ways] == [1, 1, 1, 1]
    assert [hits_after(cache, router, questions, lang=lang) for lang in ("de-AT", "fr")] == [1, 1]


def test_tenants_cannot_see_each_other(cache: SkipCache, make_router: Callable[..., Router], questions: Any) -> None:
    router = make_router(cache)

    def ask(tenant: str | None) -> int:
        with asking(Scope(namespace=tenant)):
            return hits_after(cache, router, questions)

    assert [ask(None), ask("a"), ask("b"), ask("")] == [0, 0, 0, 0]
    assert [ask(None), ask("a"), ask("b"), ask("")] == [1, 1, 1, 1]


def test_a_request_that_says_so_is_neither_answered_from_the_cache_nor_kept(
    cache: SkipCache, make_router: Callable[..., Router], questions: Any
) -> None:
    router = make_router(cache)
    with asking(Scope(store=False)):
        assert hits_after(cache, router, questions) == 0
    assert hits_after(cache, router, questions) == 0
    with asking(Scope(store=False)):
        assert hits_after(cache, router, questions) == 0
    assert (cache.stats().bypassed, cache.stats().misses) == (2, 1)


def test_what_json_cannot_express_is_left_alone(
    cache: SkipCache, make_router: Callable[..., Router], questions: Any
) -> None:
    class Label(str):
        __slots__ = ()

    router = make_router(cache)
    router.predict({"text": Label("x")}, questions, model="multilingual")
    assert cache.stats().bypassed == 1


def test_an_error_is_never_kept(cache: SkipCache, make_router: Callable[..., Router], questions: Any) -> None:
    router, seen = make_router(cache), Seen()

    def refuse(_: PredictContext) -> None:
        raise RuntimeError("not today")

    for _ in range(2):
        with pytest.raises(RuntimeError):
            router.predict(STATE, questions, on_predict_start=refuse)
        with pytest.raises(ValueError, match="question 'bad'"):
            router.predict(STATE, {"bad": {"type": "noul"}}, model="multilingual")
    router.predict(STATE, questions, hooks=seen)
    assert seen.forwards == 1
    assert cache.stats().hits == 0
