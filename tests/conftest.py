"""What tests of every kind share: the golden checkpoints, a server, and an environment without a developer's settings.

The server and the worker processes are real ones wherever a test has any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from worker.server import EmbeddedServer

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    for name in [name for name in os.environ if name.startswith(("LAYA_", "CELERY_"))]:
        del os.environ[name]


@pytest.fixture(scope="session")
def golden_checkpoints() -> dict[str, Path]:
    """Name to directory of three tiny checkpoints with random weights, in the published layout."""
    home = ROOT / "tests" / "data" / "golden" / "checkpoints"
    return {path.name: path for path in sorted(home.iterdir())}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server on a free port for the tests of one file."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A look into the server."""
    with redis.Redis.from_url(server.url) as connection:
        yield connection
