"""Equal requests at once, in one process and in two: computed once, and nobody waits for himself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from hooks import SkipCache
from laya import Agent, BaseHook, PredictContext, Router
from tests.integration.skip_cache.watched import LEASE_S, STATE, MakeCache, Seen, entries, same
from tests.waiting import wait_until


def test_equal_requests_of_one_batch_do_not_wait_for_each_other(
    cache: SkipCache, make_slow_router: Callable[..., Router], questions: Any
) -> None:
    router = make_slow_router(cache)
    request = {"state": STATE, "questions": questions, "model": "multilingual"}
    first, second = router.predict_batch([request, request])
    assert same(first, second)
    assert cache.stats().waits == 0


def test_batches_that_ask_for_each_other_s_requests_do_not_wait_for_each_other(
    make_cache: MakeCache, make_slow_router: Callable[..., Router], questions: Any
) -> None:
    requests = [{"state": f"{number}", "questions": questions, "model": "multilingual"} for number in range(6)]
    routers = [make_slow_router(make_cache()) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        started = time.monotonic()
        there = pool.submit(routers[0].predict_batch, requests)
        back = pool.submit(routers[1].predict_batch, requests[::-1])
        assert same(there.result(60), back.result(60)[::-1])
    assert time.monotonic() - started < LEASE_S / 2


def ask_at_once(routers: list[Router], times: int, questions: Any) -> list[dict[str, Any]]:
    """The same request from `times` threads for each router, all of them let go together."""
    gate = threading.Barrier(times * len(routers))

    def ask(router: Router) -> dict[str, Any]:
        gate.wait(30)
        return router.predict(STATE, questions, model="multilingual")

    with ThreadPoolExecutor(times * len(routers)) as pool:
        waiting = [pool.submit(ask, router) for router in routers for _ in range(times)]
        return [one.result(60) for one in waiting]


def test_equal_requests_at_once_in_one_process_are_one_forward(
    cache: SkipCache, make_slow_router: Callable[..., Router], questions: Any
) -> None:
    seen = Seen()
    answers = ask_at_once([make_slow_router(cache, seen)], 16, questions)
    assert seen.forwards == 1
    assert all(same(answer, answers[0]) for answer in answers)
    assert (cache.stats().hits, cache.stats().misses) == (15, 1)


def test_equal_requests_at_once_in_two_processes_are_one_forward(
    make_cache: MakeCache, make_slow_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    seen, caches = Seen(), [make_cache(), make_cache()]
    answers = ask_at_once([make_slow_router(cache, seen) for cache in caches], 8, questions)
    assert seen.forwards == 1
    assert all(same(answer, answers[0]) for answer in answers)
    assert list(client.scan_iter(f"{namespace}.cache-lease:*")) == []


def test_a_holder_that_fails_lets_the_others_go_at_once(
    make_cache: MakeCache, make_slow_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    class FailsFirst(BaseHook):
        def __init__(self) -> None:
            self.first = threading.Lock()

        def on_predict_start(self, ctx: PredictContext) -> None:
            if ctx.results is None and self.first.acquire(blocking=False):
                wait_until(lambda: sum(cache.stats().waits for cache in caches) == 7, 30, "the others")
                raise RuntimeError("the first fails")

    seen, trouble, caches = Seen(), FailsFirst(), [make_cache(), make_cache()]
    routers = [make_slow_router(cache, trouble, seen) for cache in caches]
    gate = threading.Barrier(8)

    def ask(router: Router) -> Any:
        gate.wait(30)
        try:
            return router.predict(STATE, questions, model="multilingual")
        except RuntimeError as error:
            return str(error)

    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        answers = [one.result(60) for one in [pool.submit(ask, router) for router in routers for _ in range(4)]]
    assert time.monotonic() - started < LEASE_S
    assert answers.count("the first fails") == 1
    good = [answer for answer in answers if answer != "the first fails"]
    assert all(same(answer, good[0]) for answer in good)


def test_a_lease_of_a_worker_that_died_costs_no_more_than_its_time(
    make_cache: MakeCache, make_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    cache, hasty = make_cache(), make_cache(cache_lease=1.0)
    router = make_router(cache)
    router.predict(STATE, questions)
    assert cache.flush()
    (entry,) = entries(client, namespace)
    client.delete(entry)
    lease = entry.replace(b".cache:", b".cache-lease:")
    client.set(lease, "of a dead worker", px=2000)
    started = time.monotonic()
    router.predict(STATE, questions)
    assert time.monotonic() - started < LEASE_S / 2
    assert cache.flush()
    assert cache.stats().waits == 1
    client.delete(entry)
    client.set(lease, "of one that hangs")
    make_router(hasty).predict(STATE, questions)
    assert hasty.flush()
    assert client.get(lease) == b"of one that hangs"  # nobody ends another's lease
    assert entries(client, namespace) == [entry]
    assert hasty.stats().waits == 1


def test_a_hook_may_ask_the_very_same_thing_inside_the_call(
    cache: SkipCache, make_router: Callable[..., Router], questions: Any
) -> None:
    class AsksAgain(BaseHook):
        def __init__(self) -> None:
            self.inside = False

        def on_predict_start(self, ctx: PredictContext) -> None:
            if not self.inside:
                self.inside = True
                ctx.router.predict(STATE, questions)

    for timeout in (None, 20.0):
        router = make_router(cache, AsksAgain(), hooks_timeout=timeout)
        started = time.monotonic()
        router.predict(f"{STATE}", questions)
        assert time.monotonic() - started < LEASE_S / 2


def test_a_cache_on_the_router_and_one_on_its_agent_do_not_wait_for_each_other(
    cache: SkipCache, fast: dict[str, str], questions: Any
) -> None:
    router = Router(hooks=cache)
    router.attach("multilingual", Agent(fast["multilingual"], device="cpu", hooks=cache))
    started = time.monotonic()
    router.predict(STATE, questions, model="multilingual")
    assert time.monotonic() - started < LEASE_S / 2


def test_hooks_that_run_one_at_a_time_do_not_wait_for_each_other(
    cache: SkipCache, make_slow_router: Callable[..., Router], questions: Any
) -> None:
    started = time.monotonic()
    answers = ask_at_once([make_slow_router(cache, hooks_concurrent=False)], 4, questions)
    assert time.monotonic() - started < LEASE_S / 2
    assert all(same(answer, answers[0]) for answer in answers)


def test_nothing_is_left_of_calls_that_ended(
    cache: SkipCache, make_slow_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    router = make_slow_router(cache)
    ask_at_once([router], 4, questions)
    with pytest.raises(ValueError, match="bad"):
        router.predict(STATE, {"bad": {"type": "noul"}}, model="multilingual")
    router.predict_batch([{"state": f"{n}", "questions": questions, "model": "multilingual"} for n in range(3)])
    assert cache.flush()
    assert (cache._flights._flights, dict(cache._flights._leading), len(cache._misses)) == ({}, {}, 0)
    assert list(client.scan_iter(f"{namespace}.cache-lease:*")) == []
