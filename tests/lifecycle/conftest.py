"""Real checkpoints, small enough to be loaded in a few milliseconds; nothing installed is left behind."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from laya import Agent, Router
from laya.hooks import clear_default_hooks

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "checkpoints"


@pytest.fixture(scope="session", autouse=True)
def fast_collections() -> Iterator[None]:
    """Every eviction collects; what torch and transformers made when they were imported need not be looked at again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name to directory. The temperatures of `english` that loading would clamp, with a warning, are left out."""
    paths = {name: GOLDEN / name for name in ("english", "multilingual", "typed-decisions")}
    quiet = tmp_path_factory.mktemp("checkpoints") / "english"
    shutil.copytree(paths["english"], quiet)
    config = json.loads((quiet / "rl_agent_config.json").read_text(encoding="utf-8"))
    config.pop("temperature_by_options")
    (quiet / "rl_agent_config.json").write_text(json.dumps(config), encoding="utf-8")
    return {name: str(path) for name, path in (paths | {"english": quiet}).items()}


@pytest.fixture(scope="session")
def agent(checkpoints: dict[str, str]) -> Agent:
    """One Agent for tests that install nothing on it for good."""
    return Agent(checkpoints["multilingual"], device="cpu")


@pytest.fixture
def make_agent(checkpoints: dict[str, str]) -> Callable[..., Agent]:
    def make(name: str = "multilingual", **options: Any) -> Agent:
        return Agent(checkpoints[name], device="cpu", **options)

    return make


@pytest.fixture
def make_router(checkpoints: dict[str, str]) -> Callable[..., Router]:
    def make(**options: Any) -> Router:
        return Router(**{"models": checkpoints, "device": "cpu", **options})

    return make


@pytest.fixture(autouse=True)
def no_default_hooks_left() -> Iterator[None]:
    yield
    clear_default_hooks()
