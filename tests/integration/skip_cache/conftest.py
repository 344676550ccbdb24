"""Caches, each as if it were in a process of its own, and Routers that have them; fast and slow checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hooks import SkipCache
from hooks.cache_flight import Flights
from hooks.cache_settings import CacheSettings
from laya import Agent, Router
from laya.simulated import write_checkpoint
from tests.integration.skip_cache.watched import LEASE_S, MakeCache
from worker.server import EmbeddedServer


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def make_cache(server: EmbeddedServer, namespace: str) -> Iterator[MakeCache]:
    """Caches with one namespace, each as if it were in a process of its own; a slow machine is no reason to miss.

    They keep nothing in memory unless they are told to, so that a hit shows what the server has.
    """
    made: list[SkipCache] = []

    def make(**options: Any) -> SkipCache:
        settings = {"cache_url": server.url, "namespace": namespace, "cache_budget_ms": 10_000}
        settings |= {"cache_lease": LEASE_S, "cache_local_bytes": 0, **options}
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
