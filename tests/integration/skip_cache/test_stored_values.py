"""What the skip cache keeps beside other hooks, how, and what it does about values that are none and no server."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import redis

from hooks import SkipCache
from hooks.cache_key import CacheKey
from hooks.cache_writer import Job
from laya import BaseHook, PredictContext, Router
from tests.integration.skip_cache.watched import STATE, MakeCache, Seen, entries, hits_after, same
from tests.waiting import wait_until

# --- other hooks ---


def test_the_key_sees_what_an_earlier_hook_made_of_the_call(
    cache: SkipCache, make_router: Callable[..., Router], questions: Any
) -> None:
    class Redact(BaseHook):
        def on_predict_start(self, ctx: PredictContext) -> None:
            ctx.states = [ctx.states[0].replace("Ann", "[name]").replace("Bob", "[name]")]

    router = make_router(Redact(), cache)
    for name in ("Ann", "Bob"):
        router.predict(f"I am {name}.", questions)
        assert cache.flush()
    requests = [{"state": f"I am {name}.", "questions": questions} for name in ("Ann", "Bob")]
    router.predict_batch(requests)
    assert (cache.stats().hits, cache.stats().misses) == (3, 1)


def test_what_a_later_hook_rewrote_is_not_kept(
    cache: SkipCache, make_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    class Shout(BaseHook):
        def on_predict_start(self, ctx: PredictContext) -> None:
            ctx.states = [ctx.states[0].upper()]

    router = make_router(cache, Shout())
    for _ in range(2):
        router.predict("loud", questions)
        assert cache.flush()
    assert entries(client, namespace) == []


@pytest.mark.parametrize("place", ["before", "after"])
def test_what_is_kept_is_what_the_checkpoint_computed_not_what_a_hook_made_of_it(
    place: str, cache: SkipCache, make_router: Callable[..., Router], questions: Any
) -> None:
    class Sign(BaseHook):
        def on_predict_end(self, ctx: PredictContext) -> None:
            ctx.results = [{**(ctx.results or [])[0], "signed": ctx.run_id}]
            ctx.results[0]["answers"]["team"]["note"] = ctx.run_id

    plain = make_router().predict(STATE, questions)
    router = make_router(*([Sign(), cache] if place == "before" else [cache, Sign()]))
    router.predict(STATE, questions)
    assert cache.flush()
    assert same(make_router(cache).predict(STATE, questions), plain)
    assert cache.stats().hits == 1


class Answer(BaseHook):
    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    def on_predict_start(self, ctx: PredictContext) -> None:
        ctx.skip(copy.deepcopy(self.answer))


def test_what_another_hook_answers_is_not_kept(
    cache: SkipCache, make_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    answer = make_router().predict(STATE, questions)
    del answer["routing"]
    make_router().predict(STATE, questions, hooks=cache, on_predict_start=lambda ctx: ctx.skip(copy.deepcopy(answer)))
    make_router(Answer(answer), cache).predict(STATE, questions)
    assert cache.flush()
    assert entries(client, namespace) == []
    assert cache.stats().bypassed == 1


def test_an_agent_with_hooks_of_its_own_inside_a_router_is_left_alone(
    cache: SkipCache, fast: dict[str, str], questions: Any
) -> None:
    router = Router(models=fast, device="cpu", hooks=cache, agent_kwargs={"hooks": Seen()}, defer_load=True)
    for _ in range(2):
        assert hits_after(cache, router, questions) == 0
    assert cache.stats().bypassed == 2


# --- stored values ---


@pytest.mark.parametrize("garbage", [b"", b"garbage", b"j1 ", b"z\x28\xb5\x2f\xfd", "another"])
def test_a_stored_value_that_is_none_is_a_miss_and_dropped(
    garbage: bytes | str,
    cache: SkipCache,
    make_router: Callable[..., Router],
    client: redis.Redis,
    namespace: str,
    questions: Any,
) -> None:
    router, seen = make_router(cache), Seen()
    expected = router.predict(STATE, questions)
    assert cache.flush()
    (entry,) = entries(client, namespace)
    if isinstance(garbage, str):  # the value of another key
        router.predict("another", questions)
        assert cache.flush()
        (other,) = set(entries(client, namespace)) - {entry}
        client.copy(other, entry, replace=True)
    else:
        client.set(entry, garbage)
    assert same(router.predict(STATE, questions, hooks=seen), expected)
    assert cache.flush()
    assert (seen.forwards, cache.stats().discarded) == (1, 1)
    assert same(router.predict(STATE, questions, hooks=seen), expected)
    assert seen.forwards == 1


def test_a_value_of_another_kind_of_key_harms_nobody(
    cache: SkipCache, make_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    router = make_router(cache)
    router.predict(STATE, questions)
    assert cache.flush()
    (entry,) = entries(client, namespace)
    for ask in (
        lambda: router.predict(STATE, questions),
        lambda: router.predict_batch([{"state": STATE, "questions": questions}]),
    ):
        client.delete(entry)
        client.rpush(entry, "a list")
        ask()
        assert cache.flush()
    router.predict(STATE, questions)
    assert (cache.stats().errors, cache.stats().hits) == (0, 1)


def test_values_live_for_their_time_less_a_little_and_the_large_ones_are_compressed_or_not_kept(
    make_cache: MakeCache, make_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    cache = make_cache(cache_ttl=1000, cache_compress_above=100, cache_max_bytes=1500)
    router = make_router(cache)
    for number in range(8):
        router.predict(f"{number}", questions)
    large = {"q": {"type": "choice", "instructions": "Which?", "criteria": [f"label {n}" for n in range(100)]}}
    router.predict(STATE, large)
    assert cache.flush()
    kept = entries(client, namespace)
    lives = {client.pttl(entry) for entry in kept}
    assert len(lives) > 1
    assert all(895_000 < life <= 1_000_000 for life in lives)
    assert all((client.get(entry) or b"").startswith(b"z") for entry in kept)
    assert (len(kept), cache.stats().stored, cache.stats().unstored) == (8, 8, 1)


def test_the_first_level_answers_without_the_server(
    make_cache: MakeCache, make_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    cache = make_cache(cache_local_bytes=100_000)
    router = make_router(cache)
    for _ in range(2):  # written, then read
        expected = router.predict(STATE, questions)
        assert cache.flush()
    client.delete(*entries(client, namespace))
    assert same(router.predict(STATE, questions), expected)
    assert (cache.stats().hits, cache.stats().local_hits) == (2, 1)


def test_no_text_of_a_request_is_in_a_key_a_log_or_a_repr(
    make_cache: MakeCache,
    make_router: Callable[..., Router],
    client: redis.Redis,
    namespace: str,
    questions: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    cache = make_cache()
    router = make_router(cache)
    router.predict("the secret word", questions)
    assert cache.flush()
    (entry,) = entries(client, namespace)
    client.set(entry, b"j1 the secret word")
    router.predict("the secret word", questions)
    shown = repr(cache) + caplog.text + repr(cache.stats()) + repr(client.keys(f"{namespace}*"))
    assert "secret" not in shown


# --- a server that is not there ---


def test_a_server_that_is_away_fails_nothing_and_warns_nobody(
    make_cache: MakeCache, make_router: Callable[..., Router], questions: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cache = make_cache(cache_url="redis://:secret@127.0.0.1:1/0")
    router, bare = make_router(cache), make_router()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(10):
            assert same(router.predict(f"{number}", questions), bare.predict(f"{number}", questions))
        requests = [{"state": f"{number}", "questions": questions} for number in range(5)]
        assert same(router.predict_batch(requests), bare.predict_batch(requests))
    assert cache.flush()
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.bypassed, stats.state) == (0, 0, 15, "open")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "secret" not in caplog.text


def test_a_cache_that_is_closed_while_writes_wait_leaves_no_connection(
    make_cache: MakeCache, make_router: Callable[..., Router], client: redis.Redis, questions: Any
) -> None:
    class Pauses(BaseHook):
        def on_predict_start(self, _: PredictContext) -> None:
            client.client_pause(60_000, all=False)  # the look-up has gone through, what is computed is not written

    before = {one["id"] for one in client.client_list()}
    cache = make_cache()
    router, busy = make_router(cache, Pauses()), make_router(cache)
    try:
        router.predict("kept waiting", questions)
        assert not cache.flush(0)
        cache.close()
        for number in range(3):
            cache._writer.put(Job(CacheKey("", f"late {number}", ""), b"text"))  # as a call that ends after it
        cache.close()
    finally:
        client.client_unpause()
    assert cache.flush(0)
    assert cache._store._links._idle == []
    wait_until(lambda: {one["id"] for one in client.client_list()} <= before, what="the end of its connections")
    busy.predict("of use again", questions)
    assert cache.flush(20)
    assert cache.stats().stored == 1
