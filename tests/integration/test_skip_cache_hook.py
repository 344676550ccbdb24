"""The skip cache as a hook of Routers and Agents in this process, with a real server behind it."""

from __future__ import annotations

import copy
import json
import logging
import shutil
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from hooks import SkipCache
from hooks.cache_flight import Flights
from hooks.cache_settings import CacheSettings
from hooks.scope import Scope, asking
from laya import Agent, BaseHook, PredictContext, Router
from laya.phases import FORWARD
from laya.simulated import write_checkpoint
from worker.server import EmbeddedServer

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "checkpoints"
STATE = "Mir wurde zweimal Geld abgebucht, bitte erstatten Sie die zweite Zahlung."

LEASE_S = 60.0
"""Of most caches here: whoever waits for nothing takes far less, on however busy a machine."""

MakeCache = Callable[..., SkipCache]


class Seen(BaseHook):
    """Counts what happened to calls; goes after the cache."""

    def __init__(self) -> None:
        self.forwards = 0
        self.loads: list[str] = []
        self.evictions: list[str] = []
        self.lock = threading.Lock()

    def on_load(self, ctx: PredictContext) -> None:
        self.loads.append(str(ctx.model))

    def on_evict(self, ctx: PredictContext) -> None:
        self.evictions.append(str(ctx.model))

    def on_predict_end(self, ctx: PredictContext) -> None:
        with self.lock:
            self.forwards += any(phase.name == FORWARD for phase in ctx.phases)


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def make_cache(server: EmbeddedServer, namespace: str) -> Iterator[MakeCache]:
    """Caches with one namespace, each as if it were in a process of its own; a slow machine is no reason to miss."""
    made: list[SkipCache] = []

    def make(**options: Any) -> SkipCache:
        settings = {"cache_url": server.url, "namespace": namespace, "cache_budget_ms": 10_000}
        settings |= {"cache_lease": LEASE_S, **options}
        made.append(SkipCache(CacheSettings(broker_url="redis://elsewhere", **settings), flights=Flights()))
        return made[-1]

    yield make
    for cache in made:
        cache.close()


@pytest.fixture
def cache(make_cache: MakeCache) -> SkipCache:
    return make_cache()


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two checkpoints that answer at once, with different files."""
    home = tmp_path_factory.mktemp("fast")
    return {
        name: str(write_checkpoint(home / name, pass_ms=0, row_ms=0, device=name))
        for name in ("multilingual", "typed-decisions")
    }


@pytest.fixture(scope="module")
def agent(fast: dict[str, str]) -> Agent:
    return Agent(fast["multilingual"], device="cpu")


@pytest.fixture
def make_router(agent: Agent) -> Callable[..., Router]:
    """Routers whose checkpoints are resident."""

    def make(*hooks: Any, **options: Any) -> Router:
        router = Router(device="cpu", hooks=list(hooks), defer_load=True, **options)
        for name in ("english", "multilingual"):
            router.attach(name, agent)
        return router

    return make


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """A checkpoint whose passes take long enough for others to come meanwhile."""
    return str(write_checkpoint(tmp_path / "slow", pass_ms=300, row_ms=0))


@pytest.fixture
def make_slow_router(slow: str) -> Callable[..., Router]:
    def make(*hooks: Any, **options: Any) -> Router:
        return Router(models={"multilingual": slow}, device="cpu", hooks=list(hooks), defer_load=True, **options)

    return make


def entries(client: redis.Redis, namespace: str) -> list[bytes]:
    return list(client.scan_iter(f"{namespace}.cache:*"))


def same(one: Any, other: Any) -> bool:
    """Byte for byte as JSON, and to the type of every key."""
    return json.dumps(one) == json.dumps(other) and repr(one) == repr(other)


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


def hits_after(cache: SkipCache, router: Router, questions: Any, **asked: Any) -> int:
    before = cache.stats().hits
    router.predict(STATE, questions, model="multilingual", **asked)
    assert cache.flush()
    return cache.stats().hits - before


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


# --- several at once ---


def test_requests_of_a_batch_are_looked_up_with_one_command(
    cache: SkipCache, make_router: Callable[..., Router], client: redis.Redis, questions: Any
) -> None:
    router = make_router(cache)
    requests = [{"state": f"{number}", "questions": questions} for number in range(20)]
    expected = make_router().predict_batch(requests)
    router.predict_batch(requests[:10])
    assert cache.flush()
    client.config_resetstat()
    assert same(router.predict_batch(requests), expected)
    calls = {name.lower(): stats["calls"] for name, stats in client.info("commandstats").items()}
    assert (calls["cmdstat_mget"], calls.get("cmdstat_get", 0)) == (1, 0)
    assert (cache.stats().hits, cache.stats().misses) == (10, 20)


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
                time.sleep(0.3)  # the others have come by then
                raise RuntimeError("the first fails")

    seen, trouble = Seen(), FailsFirst()
    routers = [make_slow_router(make_cache(), trouble, seen) for _ in range(2)]
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
    assert time.monotonic() - started < 30
    assert answers.count("the first fails") == 1
    good = [answer for answer in answers if answer != "the first fails"]
    assert all(same(answer, good[0]) for answer in good)


def test_a_lease_of_a_worker_that_died_costs_no_more_than_its_time(
    make_cache: MakeCache, make_router: Callable[..., Router], client: redis.Redis, namespace: str, questions: Any
) -> None:
    cache = make_cache(cache_lease=1.0)
    router = make_router(cache)
    router.predict(STATE, questions)
    assert cache.flush()
    (entry,) = entries(client, namespace)
    client.delete(entry)
    lease = entry.replace(b".cache:", b".cache-lease:")
    client.set(lease, "of a dead worker", px=600)
    started = time.monotonic()
    router.predict(STATE, questions)
    assert 0.4 < time.monotonic() - started < 10
    assert cache.flush()
    client.delete(entry)
    client.set(lease, "of one that hangs")
    started = time.monotonic()
    router.predict(STATE, questions)
    assert 0.8 < time.monotonic() - started < 10
    assert cache.flush()
    assert client.get(lease) == b"of one that hangs"  # nobody ends another's lease
    assert entries(client, namespace) == [entry]
    assert cache.stats().waits == 2


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
