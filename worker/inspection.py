"""What a worker tells about its checkpoints when it is asked: `celery -A worker inspect resident`.

The command line, the demo and an operator ask over Celery's remote control. Nothing here changes anything.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, TypedDict

from celery.worker.control import inspect_command

from laya.context import PredictContext


class Holdings(TypedDict):
    """The answer: checkpoints in memory, least recently used first, and how often each was loaded since the start."""

    resident: list[str]
    loads: dict[str, int]


class LoadCount:
    """A hook that counts the loads of each checkpoint."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._lock = threading.Lock()
        self._loads: Counter[str] = Counter()

    def on_load(self, ctx: PredictContext) -> None:
        """One more load of `ctx.model`."""
        with self._lock:
            self._loads[str(ctx.model)] += 1

    def by_name(self) -> dict[str, int]:
        """Checkpoint to the number of its loads."""
        with self._lock:
            return dict(self._loads)


@inspect_command(name="resident")  # type: ignore[untyped-decorator]
def resident(state: Any, **_: Any) -> Holdings:
    """Checkpoints in memory, and how often each was loaded since the start."""
    service = state.app.service
    if service is None:
        return {"resident": [], "loads": {}}
    return {"resident": service.router.loaded, "loads": service.loads.by_name()}
