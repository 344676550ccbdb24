"""Lists whose hooks rewrite them, answer, fail, or ask again: computed once, and no lease is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from hooks import SkipCache
from hooks.cache_flight import Flights
from hooks.cache_settings import CacheSettings
from laya import BaseHook, PredictContext, Router
from tests.faults.proxy import Proxy
from tests.integration.skip_cache.lists import Halts, at_once, leases, listed, nothing_is_owed
from tests.integration.skip_cache.watched import LEASE_S, MakeCache, Seen, entries, same
from tests.waiting import wait_until
from worker.server import EmbeddedServer

MakeRouter = Callable[..., Router]


def test_a_list_whose_holder_died_waits_no_longer_than_its_lease_and_not_once_for_each_request(
    make_cache: MakeCache, make_router: MakeRouter, client: redis.Redis, namespace: str, questions: Any
) -> None:
    cache = make_cache(cache_lease=1.0)
    router, requests = make_router(cache), listed([f"{at}" for at in range(40)], questions)
    router.predict_batch(requests)
    assert cache.flush()
    held = [entry.replace(b".cache:", b".cache-lease:") for entry in entries(client, namespace)]
    for hook in ([], [Rewrites()]):
        client.flushdb()
        for name in held:
            client.set(name, "of one that hangs")
        router = make_router(*hook, cache)
        started = time.monotonic()
        router.predict_batch(requests)
        assert time.monotonic() - started < 30  # 40 seconds, if each request waited for itself
        assert cache.flush()
        assert len(entries(client, namespace)) == 40
        assert set(leases(client, namespace)) == set(held)  # nobody ends another's lease


class Rewrites(BaseHook):
    """Takes the sign off a state, so that the caller's request has another key; goes before the cache."""

    def on_predict_start(self, ctx: PredictContext) -> None:
        ctx.states = [state.removeprefix("+") for state in ctx.states]


def test_a_list_that_fails_lets_the_others_go_at_once(
    make_cache: MakeCache, make_slow_router: MakeRouter, client: redis.Redis, namespace: str, questions: Any
) -> None:
    class Fails(BaseHook):
        def on_predict_start(self, ctx: PredictContext) -> None:
            if ctx.states == ["1"] and not halts.go.is_set():
                halts.on_predict_start(ctx)
                raise RuntimeError("the list fails")

    halts, caches = Halts(), [make_cache(), make_cache()]
    router, other = make_slow_router(caches[0], Fails()), make_slow_router(caches[1])
    requests = listed(["0", "1", "2"], questions)  # the first has its lease by then, the last has not begun
    with ThreadPoolExecutor(6) as pool:
        failing = pool.submit(router.predict_batch, requests)
        assert halts.here.wait(30)
        waiting = [pool.submit(one.predict_batch, requests) for one in (router, other)]
        waiting += [pool.submit(other.predict, "2", questions, model="multilingual")]
        wait_until(lambda: [cache.stats().waits for cache in caches] == [3, 4], what="all of them wait")
        started = time.monotonic()
        halts.go.set()
        with pytest.raises(RuntimeError, match="the list fails"):
            failing.result(60)
        here, there, single = (one.result(60) for one in waiting)
    assert time.monotonic() - started < LEASE_S / 2
    assert same(here, there)
    assert same(single, here[2])
    assert nothing_is_owed(client, namespace, *caches)


@pytest.mark.parametrize(
    ("states", "known"),
    [
        pytest.param(["+0", "+1", "+2"], 0, id="every request"),
        pytest.param(["0", "+1", "2"], 0, id="one in the middle"),
        pytest.param(["+0", "1", "2"], 0, id="the first"),
    ],
)
def test_lists_that_a_hook_rewrites_are_computed_once_and_leave_no_lease(
    states: list[str],
    known: int,
    make_cache: MakeCache,
    make_slow_router: MakeRouter,
    client: redis.Redis,
    namespace: str,
    questions: Any,
) -> None:
    seen, caches = Seen(), [make_cache(), make_cache()]
    routers = [make_slow_router(Rewrites(), cache, seen) for cache in caches]
    requests = listed(states, questions)
    answers = at_once(*[lambda router=router: router.predict_batch(requests) for router in routers * 2])
    assert seen.forwards == 3
    assert all(same(answer, answers[0]) for answer in answers)
    assert nothing_is_owed(client, namespace, *caches)


def test_a_list_that_is_rewritten_or_answered_after_its_look_up_leaves_no_lease(
    cache: SkipCache, make_router: MakeRouter, client: redis.Redis, namespace: str, questions: Any
) -> None:
    class Answers(BaseHook):
        def on_predict_start(self, ctx: PredictContext) -> None:
            if ctx.states == ["1"]:
                ctx.skip({"model": "mine", "answers": {}, "usage": {"input_tokens": 0, "output_tokens": 0}})

    for hooks in ([cache, Rewrites()], [cache, Answers()], [Answers(), cache]):
        make_router(*hooks).predict_batch(listed(["+0", "1", "+2"], questions))
        assert nothing_is_owed(client, namespace, cache)


def test_lists_do_not_wait_where_hooks_run_one_at_a_time(
    cache: SkipCache, make_slow_router: MakeRouter, questions: Any
) -> None:
    router, requests = make_slow_router(cache, hooks_concurrent=False), listed(["0", "1"], questions)
    started = time.monotonic()
    answers = at_once(*[lambda: router.predict_batch(requests)] * 4)
    assert time.monotonic() - started < LEASE_S / 2
    assert all(same(answer, answers[0]) for answer in answers)


class Asks(BaseHook):
    """Asks the same things again inside of a call: each alone, and all in a list."""

    def __init__(self, questions: Any) -> None:
        self.questions, self.inside, self.asked = questions, False, 0

    def on_predict_start(self, ctx: PredictContext) -> None:
        if self.inside:
            return
        self.inside = True
        try:
            for state in ("0", "1", "2"):
                ctx.router.predict(state, self.questions, model="multilingual")
            ctx.router.predict_batch(listed(["2", "1", "0"], self.questions))
            ctx.router.predict_batch(listed(ctx.states, self.questions))
            self.asked += 1
        finally:
            self.inside = False


@pytest.mark.parametrize("place", ["before the cache", "after the cache"])
@pytest.mark.parametrize("timeout", [None, 40.0])
def test_a_hook_may_ask_the_very_same_things_inside_a_list_and_a_list_inside_a_call(
    place: str,
    timeout: float | None,
    cache: SkipCache,
    make_router: MakeRouter,
    client: redis.Redis,
    namespace: str,
    questions: Any,
) -> None:
    for call in (
        lambda router: router.predict_batch(listed(["0", "1", "2"], questions)),
        lambda router: router.predict("1", questions, model="multilingual"),
    ):
        client.flushdb()
        asks = Asks(questions)
        hooks = [asks, cache] if place == "before the cache" else [cache, asks]
        started = time.monotonic()
        call(make_router(*hooks, hooks_timeout=timeout))
        assert time.monotonic() - started < LEASE_S / 3
        assert asks.asked
        assert nothing_is_owed(client, namespace, cache)


def test_two_caches_on_one_list_do_not_wait_for_each_other(
    make_cache: MakeCache, server: EmbeddedServer, namespace: str, fast: dict[str, str], questions: Any
) -> None:
    flights = Flights()
    settings = CacheSettings(
        broker_url="redis://elsewhere",
        cache_url=server.url,
        namespace=namespace,
        cache_budget_ms=10_000,
        cache_lease=LEASE_S,
    )
    caches = [SkipCache(settings, flights=flights) for _ in range(2)]
    router = Router(models={"multilingual": fast["multilingual"]}, hooks=caches, defer_load=True)
    started = time.monotonic()
    router.predict_batch(listed(["0", "1"], questions))
    assert time.monotonic() - started < LEASE_S / 2
    for cache in caches:
        cache.close()


def test_a_look_up_that_outlasts_its_call_leaves_no_lease(
    make_cache: MakeCache, make_router: MakeRouter, client: redis.Redis, namespace: str, questions: Any
) -> None:
    port = client.connection_pool.connection_kwargs["port"]
    with Proxy(port) as proxy:
        cache = make_cache(cache_url=proxy.url)
        router = make_router(cache, hooks_timeout=0.2)
        router.predict_batch(listed(["warm"], questions))  # connected
        assert cache.flush()
        proxy.slow(0.5)
        with pytest.warns(RuntimeWarning, match="hooks_timeout"):
            router.predict_batch(listed(["0"], questions))
        with pytest.warns(RuntimeWarning, match="hooks_timeout"):
            router.predict("1", questions, model="multilingual")
        proxy.forward()
        late = [thread for thread in threading.enumerate() if thread.name.startswith("laya-hook-SkipCache")]
        for thread in late:
            thread.join(30)
        assert nothing_is_owed(client, namespace, cache)
