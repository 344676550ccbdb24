"""Lists with equal requests at once, in one process and in two, and single requests beside them: computed once, and
nobody waits for one who waits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis

from hooks import SkipCache
from hooks.cache_flight import Flights
from hooks.cache_settings import CacheSettings
from laya import BaseHook, PredictContext, Router
from laya.simulated import write_checkpoint
from tests.faults.proxy import Proxy
from tests.integration.skip_cache.watched import LEASE_S, MakeCache, Seen, entries, same
from tests.waiting import wait_until
from worker.server import EmbeddedServer

MakeRouter = Callable[..., Router]


def listed(states: Sequence[str], questions: Any) -> list[dict[str, Any]]:
    return [{"state": state, "questions": questions, "model": "multilingual"} for state in states]


def leases(client: redis.Redis, namespace: str) -> list[bytes]:
    return list(client.scan_iter(f"{namespace}.cache-lease:*", count=1000))


def nothing_is_owed(client: redis.Redis, namespace: str, *caches: SkipCache) -> bool:
    assert all(cache.flush() for cache in caches)
    left = [(cache._flights._flights, dict(cache._flights._leading), len(cache._misses)) for cache in caches]
    return left == [({}, {}, 0)] * len(caches) and leases(client, namespace) == []


class Halts(BaseHook):
    """Stops the first call that has to compute something until it is let go; goes after the cache."""

    def __init__(self) -> None:
        self.first = threading.Lock()
        self.here, self.go = threading.Event(), threading.Event()

    def on_predict_start(self, ctx: PredictContext) -> None:
        if ctx.results is None and self.first.acquire(blocking=False):
            self.here.set()
            assert self.go.wait(60)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each of these returns, all of them let go together."""
    gate = threading.Barrier(len(calls))

    def let_go(call: Callable[[], Any]) -> Any:
        gate.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result(120) for one in [pool.submit(let_go, call) for call in calls]]


def calls_of(client: redis.Redis) -> dict[str, int]:
    stats = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


def test_a_list_of_hits_takes_one_command_and_one_with_misses_one_more(
    cache: SkipCache, make_router: MakeRouter, client: redis.Redis, questions: Any
) -> None:
    router = make_router(cache)
    requests = listed([f"{number}" for number in range(20)], questions)
    expected = make_router().predict_batch(requests)
    router.predict_batch(requests[:10])
    assert cache.flush()
    client.config_resetstat()
    router.predict_batch(requests[:10])
    calls = calls_of(client)
    assert (calls["mget"], calls.get("get", 0), calls.get("evalsha", 0)) == (1, 0, 0)
    assert same(router.predict_batch(requests), expected)
    assert cache.flush()
    calls = calls_of(client)
    assert (calls["mget"], calls["evalsha"]) == (2, 1 + 10)  # ten answers are written
    assert (cache.stats().hits, cache.stats().misses) == (20, 20)


@pytest.mark.parametrize(("processes", "number"), [(1, 8), (2, 1), (2, 8), (2, 300)])
def test_equal_lists_at_once_are_computed_once(
    processes: int,
    number: int,
    make_cache: MakeCache,
    make_slow_router: MakeRouter,
    client: redis.Redis,
    namespace: str,
    questions: Any,
) -> None:
    seen, caches = Seen(), [make_cache() for _ in range(processes)]
    routers = [make_slow_router(cache, seen) for cache in caches]
    states = [f"{at}" for at in range(number)]
    turned = states[::-1]
    calls = [
        lambda router=router, order=order: router.predict_batch(listed(order, questions))
        for router in routers
        for order in (states, turned, states, turned)
    ]
    answers = at_once(*calls)
    assert seen.forwards == number
    assert all(same(answer if place % 2 == 0 else answer[::-1], answers[0]) for place, answer in enumerate(answers))
    stats = [cache.stats() for cache in caches]
    assert sum(each.misses for each in stats) == number
    assert sum(each.hits for each in stats) == number * (4 * processes - 1)
    assert nothing_is_owed(client, namespace, *caches)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_single_requests_wait_for_a_list_that_computes_theirs(
    elsewhere: bool,
    make_cache: MakeCache,
    make_slow_router: MakeRouter,
    client: redis.Redis,
    namespace: str,
    questions: Any,
) -> None:
    seen, halts, caches = Seen(), Halts(), [make_cache(), make_cache()]
    router = make_slow_router(caches[0], halts, seen)
    other = make_slow_router(caches[1], seen) if elsewhere else router
    with ThreadPoolExecutor(9) as pool:
        many = pool.submit(router.predict_batch, listed(["0", "1", "2"], questions))
        assert halts.here.wait(30)
        singles = [pool.submit(other.predict, f"{at % 3}", questions, model="multilingual") for at in range(6)]
        # Of those in another process one for each request polls, and the others wait for it.
        wait_until(lambda: caches[elsewhere].stats().waits == 6, what="all of them wait")
        halts.go.set()
        answers = many.result(60)
        assert all(same(single.result(60), answers[at % 3]) for at, single in enumerate(singles))
    assert seen.forwards == 3
    assert nothing_is_owed(client, namespace, *caches)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_list_waits_for_single_requests_that_compute_all_of_it(
    elsewhere: bool,
    make_cache: MakeCache,
    make_slow_router: MakeRouter,
    client: redis.Redis,
    namespace: str,
    questions: Any,
) -> None:
    seen, halts, caches = Seen(), Halts(), [make_cache(), make_cache()]
    router = make_slow_router(caches[0], halts, seen)
    other = make_slow_router(caches[1], seen) if elsewhere else router
    with ThreadPoolExecutor(2) as pool:
        single = pool.submit(router.predict, "0", questions, model="multilingual")
        assert halts.here.wait(30)
        many = pool.submit(other.predict_batch, listed(["0", "0"], questions))
        wait_until(lambda: caches[elsewhere].stats().waits, what="the list waits")
        halts.go.set()
        assert all(same(answer, single.result(60)) for answer in many.result(60))
    assert seen.forwards == 1
    assert nothing_is_owed(client, namespace, *caches)


def test_a_list_that_others_wait_for_waits_for_nobody(
    make_cache: MakeCache, make_slow_router: MakeRouter, client: redis.Redis, namespace: str, questions: Any
) -> None:
    halts, caches = Halts(), [make_cache(), make_cache()]
    router, other = make_slow_router(caches[0], halts), make_slow_router(caches[1])
    with ThreadPoolExecutor(1) as pool:
        single = pool.submit(router.predict, "0", questions, model="multilingual")
        assert halts.here.wait(30)
        there = other.predict_batch(listed(["0", "1"], questions))  # while the other is halted
        halts.go.set()
        assert same(single.result(60), there[0])
    assert (caches[1].stats().waits, caches[1].stats().misses) == (0, 2)
    assert nothing_is_owed(client, namespace, *caches)


def test_lists_and_single_requests_that_overlap_in_every_way_never_wait_for_each_other_in_a_circle(
    make_cache: MakeCache,
    make_slow_router: MakeRouter,
    client: redis.Redis,
    namespace: str,
    questions: Any,
    tmp_path: Any,
) -> None:
    checkpoint = str(write_checkpoint(tmp_path / "quick", pass_ms=3, row_ms=0))
    caches = [make_cache(), make_cache()]
    routers = [Router(models={"multilingual": checkpoint}, hooks=cache, defer_load=True) for cache in caches]
    bare = Router(models={"multilingual": checkpoint})
    for router in routers:
        router.load("multilingual")
    chance = random.Random(7)
    started = time.monotonic()
    for number in range(20):
        states = [f"{number} {at}" for at in range(6)]
        orders = [chance.sample(states, chance.randint(1, 6)) for _ in range(5)]
        orders.append(orders[0][::-1])
        lists = [partial(routers[at % 2].predict_batch, listed(order, questions)) for at, order in enumerate(orders)]
        singles = [partial(router.predict, states[0], questions, model="multilingual") for router in routers]
        expected = {state: bare.predict(state, questions, model="multilingual") for state in states}
        answers = at_once(*lists, *singles)
        for order, answer in zip(orders, answers[: len(orders)], strict=True):
            assert same(answer, [expected[state] for state in order])
        assert all(same(answer, expected[states[0]]) for answer in answers[len(orders) :])
    assert time.monotonic() - started < LEASE_S / 2
    assert nothing_is_owed(client, namespace, *caches)


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
        assert 0.8 < time.monotonic() - started < 10
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


def test_without_a_lease_lists_do_not_wait_and_leave_none(
    make_cache: MakeCache, make_slow_router: MakeRouter, client: redis.Redis, namespace: str, questions: Any
) -> None:
    cache, halts = make_cache(cache_lease=0), Halts()
    router, requests = make_slow_router(cache, halts), listed(["0", "1"], questions)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(router.predict_batch, requests)
        assert halts.here.wait(30)
        assert leases(client, namespace) == []
        second = router.predict_batch(requests)  # while the first is halted
        halts.go.set()
        assert same(first.result(60), second)
    assert cache.stats().waits == 0


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
