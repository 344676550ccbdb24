"""Lists with equal requests at once, in one process and in two, and single requests beside them: computed once, and
nobody waits for one who waits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import redis

from hooks import SkipCache
from laya import Router
from laya.simulated import write_checkpoint
from tests.integration.skip_cache.lists import Halts, at_once, leases, listed, nothing_is_owed
from tests.integration.skip_cache.watched import LEASE_S, MakeCache, Seen, same
from tests.waiting import wait_until

MakeRouter = Callable[..., Router]


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


@dataclass(frozen=True)
class Pair:
    """A Router that halts at the first thing it computes, and one that asks for the same, with the cache it asks."""

    first: Router
    halts: Halts
    other: Router
    asked: SkipCache
    seen: Seen


@pytest.fixture(params=[False, True], ids=["in one process", "in two"])
def pair(
    request: pytest.FixtureRequest,
    make_cache: MakeCache,
    make_slow_router: MakeRouter,
    client: redis.Redis,
    namespace: str,
) -> Iterator[Pair]:
    seen, halts, caches = Seen(), Halts(), [make_cache(), make_cache()]
    first = make_slow_router(caches[0], halts, seen)
    other = make_slow_router(caches[1], seen) if request.param else first
    yield Pair(first, halts, other, caches[request.param], seen)
    assert nothing_is_owed(client, namespace, *caches)


def test_single_requests_wait_for_a_list_that_computes_theirs(pair: Pair, questions: Any) -> None:
    with ThreadPoolExecutor(9) as pool:
        many = pool.submit(pair.first.predict_batch, listed(["0", "1", "2"], questions))
        assert pair.halts.here.wait(30)
        singles = [pool.submit(pair.other.predict, f"{at % 3}", questions, model="multilingual") for at in range(6)]
        # Of those in another process one for each request polls, and the others wait for it.
        wait_until(lambda: pair.asked.stats().waits == 6, what="all of them wait")
        pair.halts.go.set()
        answers = many.result(60)
        assert all(same(single.result(60), answers[at % 3]) for at, single in enumerate(singles))
    assert pair.seen.forwards == 3


def test_a_list_waits_for_single_requests_that_compute_all_of_it(pair: Pair, questions: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        single = pool.submit(pair.first.predict, "0", questions, model="multilingual")
        assert pair.halts.here.wait(30)
        many = pool.submit(pair.other.predict_batch, listed(["0", "0"], questions))
        wait_until(lambda: pair.asked.stats().waits, what="the list waits")
        pair.halts.go.set()
        assert all(same(answer, single.result(60)) for answer in many.result(60))
    assert pair.seen.forwards == 1


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
