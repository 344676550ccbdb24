"""Residency of real checkpoints: memory really freed, the warm never waiting, failed builds remembered, evict_first."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import laya.agent
import laya.checkpoint
import laya.residency
from laya import PredictContext, Router
from laya.batching import Batching
from tests.lifecycle.recording import DEADLINE_S, QUESTIONS, STATE, At, Recorder

MakeRouter = Callable[..., Router]
NAMES = ["english", "multilingual", "typed-decisions"]


class Builds:
    """Looks into every build: which source, which earlier Agents were alive when it began; can hold it or fail it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.agents: list[tuple[weakref.ref[Any], ...]] = []  # what of each Agent holds memory
        self.alive: list[list[bool]] = []
        self.sources: list[str] = []
        self.before: Callable[[str], None] = lambda source: None
        real = laya.checkpoint.load_checkpoint

        def load_checkpoint(source: str, **options: Any) -> Any:
            self.alive.append([any(part() is not None for part in agent) for agent in self.agents])
            self.sources.append(source)
            self.before(source)
            return real(source, **options)

        monkeypatch.setattr(laya.agent, "load_checkpoint", load_checkpoint)

    def on_load(self, ctx: PredictContext) -> None:
        agent: Any = ctx.agent
        self.agents.append((weakref.ref(agent), weakref.ref(agent.model), weakref.ref(agent.checkpoint.kind)))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Builds:
    return Builds(monkeypatch)


@pytest.fixture(autouse=True)
def no_collection_by_chance() -> Iterator[None]:
    """An Agent must not be freed by a collection that happens to come in time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def requests(*models: str) -> list[dict[str, Any]]:
    return [{"state": STATE, "questions": QUESTIONS, "model": model} for model in models]


def one_by_one(router: Router) -> None:
    for name in NAMES:
        router.predict(STATE, QUESTIONS, model=name)


def in_one_batch(router: Router) -> None:
    router.predict_batch(requests(*NAMES, *NAMES))


def with_hits(router: Router) -> None:
    router.predict_batch(requests(*NAMES), on_predict_start=lambda ctx: ctx.skip({"answers": {}}))


def one_after_a_failure(router: Router) -> None:
    for name in NAMES:
        with pytest.raises(ValueError, match="question"):
            router.predict(STATE, {"q": {}}, model=name)


def batches_that_fail(router: Router) -> None:
    for name in NAMES:
        with pytest.raises(ValueError, match="question"):
            router.predict_batch([*requests(name), {"state": STATE, "questions": {"q": {}}, "model": name}])


WAYS = [one_by_one, in_one_batch, with_hits, one_after_a_failure, batches_that_fail]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    "options",
    [{}, {"defer_load": True}, {"agent_kwargs": {"batching": Batching()}}],
    ids=["as the page says", "defer_load", "shared passes"],
)
def test_an_evicted_checkpoint_s_memory_is_freed_before_the_next_build(
    make_router: MakeRouter, builds: Builds, way: Callable[[Router], None], options: dict[str, Any]
) -> None:
    if way is with_hits and options.get("defer_load"):
        options = {}  # a deferred load never comes
    way(make_router(max_loaded=1, hooks=builds, **options))
    # The third build finds the second checkpoint resident; the first was evicted after the second was built.
    assert builds.alive == [[], [True], [False, True]]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_with_evict_first_the_victim_s_memory_is_freed_before_the_build_that_displaces_it(
    make_router: MakeRouter, builds: Builds, way: Callable[[Router], None]
) -> None:
    way(make_router(max_loaded=1, evict_first=True, hooks=builds))
    assert builds.alive == [[], [False], [False, False]]


def test_an_evicted_checkpoint_is_gone_when_on_evict_fires(make_router: MakeRouter) -> None:
    agents: list[weakref.ref[Any]] = []
    gone: list[bool] = []
    router = make_router(max_loaded=1)
    router.add_hook(At("on_load", lambda ctx: agents.append(weakref.ref(ctx.agent))))
    router.add_hook(At("on_evict", lambda ctx: gone.append(agents[0]() is None)))
    router.predict(STATE, QUESTIONS, model="english")
    router.predict(STATE, QUESTIONS, model="multilingual")
    assert gone == [True]


def test_an_unloaded_checkpoint_is_gone_when_on_evict_fires(make_router: MakeRouter) -> None:
    gone: list[bool] = []
    router = make_router()
    agent = weakref.ref(router.load("english"))
    router.add_hook(At("on_evict", lambda ctx: gone.append(agent() is None)))
    router.predict(STATE, QUESTIONS, model="english")
    router.unload("english")
    assert gone == [True]


def test_a_router_that_is_dropped_takes_its_checkpoints_with_it(make_router: MakeRouter) -> None:
    router = make_router()
    router.predict(STATE, QUESTIONS, model="english")
    agent = weakref.ref(router.load("english"))
    del router
    gc.collect()
    assert agent() is None


@pytest.mark.parametrize("warm_call", ["predict", "predict_batch", "load", "route"])
def test_a_warm_request_never_waits_for_another_checkpoint_s_build(
    make_router: MakeRouter, builds: Builds, warm_call: str
) -> None:
    router = make_router()
    router.load("english")
    building, finish = threading.Event(), threading.Event()

    def hold(source: str) -> None:
        building.set()
        assert finish.wait(DEADLINE_S)

    builds.before = hold
    warm: dict[str, Callable[[], Any]] = {
        "predict": lambda: router.predict(STATE, QUESTIONS, model="english"),
        "predict_batch": lambda: router.predict_batch(requests("english")),
        "load": lambda: router.load("english"),
        "route": lambda: router.route(STATE),
    }
    with ThreadPoolExecutor(1) as pool:
        cold = pool.submit(router.predict, STATE, QUESTIONS, model="multilingual")
        try:
            assert building.wait(DEADLINE_S)
            assert warm[warm_call]()
            assert not cold.done()
        finally:
            finish.set()
        assert cold.result(DEADLINE_S)["answers"]


def test_a_victim_in_use_is_not_chosen_while_another_can_be(make_router: MakeRouter) -> None:
    router = make_router(max_loaded=2)
    router.load("english")
    evicted = Recorder()

    def load_two_more(ctx: PredictContext) -> None:
        router.load("multilingual")
        with router.hooks_installed(evicted):
            router.load("typed-decisions")

    router.predict(STATE, QUESTIONS, model="english", on_predict_start=load_two_more)
    assert [ctx.model for ctx in evicted.seen("on_evict")] == ["multilingual"]


def test_a_failed_build_is_remembered_for_a_short_time(
    make_router: MakeRouter, builds: Builds, checkpoints: dict[str, str]
) -> None:
    router = make_router(models={"english": "/there/is/no/such/place"})
    for _ in range(3):
        with pytest.raises(FileNotFoundError, match="no such directory"):
            router.load("english")
    assert len(builds.sources) == 1
    router.register("english", checkpoints["english"])
    assert router.load("english"), "a new source must be tried at once"


def test_a_failed_build_is_tried_again_after_that_time(
    make_router: MakeRouter, builds: Builds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laya.residency, "REMEMBER_FAILURE_S", 0.0)
    router = make_router(models={"english": "/there/is/no/such/place"})
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            router.load("english")
    assert len(builds.sources) == 2


def test_a_failed_build_evicts_nothing_without_evict_first(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(max_loaded=1, hooks=hook)
    router.load("multilingual")
    router.register("english", "/there/is/no/such/place")
    with pytest.raises(FileNotFoundError):
        router.load("english")
    assert hook.events == ["on_load"]
    assert router.loaded == ["multilingual"]


def test_with_evict_first_a_failed_build_still_reports_what_it_evicted(make_router: MakeRouter) -> None:
    hook = Recorder()
    router = make_router(max_loaded=1, hooks=hook, evict_first=True)
    router.load("multilingual")
    router.register("english", "/there/is/no/such/place")
    with pytest.raises(FileNotFoundError):
        router.load("english")
    assert hook.events == ["on_load", "on_evict"]
    assert router.loaded == []


def test_with_evict_first_there_is_never_more_than_max_loaded_in_memory(
    make_router: MakeRouter, builds: Builds
) -> None:
    router = make_router(max_loaded=2, evict_first=True, hooks=builds)
    for name in NAMES * 2:
        router.predict(STATE, QUESTIONS, model=name)
    assert [sum(alive) for alive in builds.alive] == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("options", [{}, {"hooks_timeout": DEADLINE_S}, {"hooks_concurrent": False}])
def test_with_evict_first_a_hook_may_displace_the_checkpoint_of_its_own_call(
    make_router: MakeRouter, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its call cannot end while the hook waits for the load, so the load must not wait for its call."""
    monkeypatch.setattr(laya.residency, "DRAIN_S", 4 * DEADLINE_S)
    router = make_router(max_loaded=1, evict_first=True, **options)
    want = router.predict(STATE, QUESTIONS, model="english")

    def displace(ctx: PredictContext) -> None:
        router.load("multilingual")

    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(router.predict, STATE, QUESTIONS, model="english", on_predict_start=displace)
        assert call.result(DEADLINE_S) == want


@pytest.mark.parametrize("way", [one_by_one, in_one_batch, with_hits], ids=lambda way: way.__name__)
@pytest.mark.parametrize("options", [{}, {"defer_load": True}], ids=["as the page says", "defer_load"])
def test_nothing_in_the_router_s_frames_holds_an_agent_once_its_use_has_ended(
    make_router: MakeRouter, way: Callable[[Router], None], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the last use is what a build that waits for the memory goes by."""
    router = make_router(max_loaded=3, **options)
    residency = router._residency
    release, held = residency._release, []

    def let_go(users: Any, chain: object) -> None:
        agents = [weakref.ref(resident.agent) for resident in residency._residents.values()]
        residency._residents.clear()
        held.append([agent() is not None for agent in agents])
        release(users, chain)

    monkeypatch.setattr(residency, "_release", let_go)
    way(router)
    assert held == ([] if options and way is with_hits else [[False]] * 3)


@pytest.mark.parametrize("let_go", ["load", "unload"])
def test_a_checkpoint_let_go_while_a_call_used_it_is_freed_before_the_next_build_although_it_refers_to_itself(
    make_router: MakeRouter, builds: Builds, let_go: str
) -> None:
    router = make_router(max_loaded=1, hooks=builds)
    agent = router.load("english")
    agent.itself = agent  # reference counts alone will not free it
    del agent

    def displace(ctx: PredictContext) -> None:
        router.load("multilingual") if let_go == "load" else router.unload("english")

    router.predict(STATE, QUESTIONS, model="english", on_predict_start=displace)
    router.load("typed-decisions")
    assert builds.alive[-1][0] is False
