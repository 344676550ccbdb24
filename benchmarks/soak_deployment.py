"""What the long run disturbs: a server behind a proxy, supervised workers, and a backend.

What is asked of it is `benchmarks.soak_load`'s, what is done to it `benchmarks.soak`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import redis

from benchmarks.crew import Crew
from laya.simulated import write_checkpoint
from producer.app import PredictionApp
from producer.settings import ProducerSettings
from producer.tasks import register
from tests.faults.proxy import Proxy
from worker.server import EmbeddedServer

CHECKPOINTS: Final = ("english", "multilingual", "typed-decisions")

HANG_S: Final = 6
"""Seconds after which a worker takes itself for hung."""


class Deployment:
    """A server behind a proxy, workers that are supervised, and a backend that reaches the server directly."""

    def __init__(self, home: Path, visibility: int) -> None:
        """Describe it; messages come back after `visibility` seconds."""
        self.server = EmbeddedServer(directory=home / "data", appendonly=True, options={"appendfsync": "always"})
        self.server.start()
        assert self.server.port is not None
        self.proxy = Proxy(self.server.port)
        self.proxy.__enter__()
        listed = ",".join(
            f"{name}={write_checkpoint(home / name, pass_ms=3.0, row_ms=0.1, load_s=0.2)}" for name in CHECKPOINTS
        )
        environment = {
            "LAYA_BROKER_URL": self.proxy.url,
            "LAYA_CHECKPOINTS": listed,
            "LAYA_MAX_LOADED": "2",
            "LAYA_DWELL": "1",
            "LAYA_VISIBILITY_TIMEOUT": str(visibility),
            "LAYA_HANG_SECONDS": str(HANG_S),
            "LAYA_HOOKS": "benchmarks.soak_hooks.Misbehave",
            "LAYA_RUN_DIR": str(home / "run"),
        }
        self.crew = Crew(home, ("red", "blue"), environment, "-c", "16")
        self.app = PredictionApp(
            ProducerSettings(broker_url=self.server.url, checkpoints=listed, visibility_timeout=visibility)
        )
        self.one, self.many = register(self.app)
        self.client = redis.Redis.from_url(self.server.url)

    def __enter__(self) -> Self:
        """Start the workers, and wait until both take messages."""
        self.crew.__enter__()
        until(lambda: all(" ready." in self.crew.log(name) for name in self.crew.names), 60, "the workers' start")
        return self

    def __exit__(self, *exception: object) -> None:
        """End everything."""
        self.proxy.forward()
        self.proxy.cut()
        self.crew.__exit__(None, None, None)
        self.app.close()
        self.client.close()
        self.proxy.__exit__(None, None, None)
        self.server.stop()


def until(condition: Callable[[], Any], seconds: float, what: str) -> bool:
    """Wait for a condition; whether it came about.

    Raises:
        TimeoutError: it did not, and nothing can go on without it.
    """
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            if what:
                raise TimeoutError(f"{what} did not come about within {seconds:.0f} s")
            return False
        time.sleep(0.1)
    return True
