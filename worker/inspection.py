"""What a worker tells about its checkpoints when it is asked: `celery -A worker inspect resident`.

The command line, the demo and an operator ask over Celery's remote control. Nothing here changes anything.
"""

from __future__ import annotations

from typing import Any, TypedDict

from celery.worker.control import inspect_command


class Holdings(TypedDict):
    """The answer: checkpoints in memory, least recently used first, and how often each was loaded since the start."""

    resident: list[str]
    loads: dict[str, int]


@inspect_command(name="resident")  # type: ignore[untyped-decorator]
def resident(state: Any, **_: Any) -> Holdings:
    """Checkpoints in memory, and how often each was loaded since the start."""
    service = state.app.service
    if service is None:
        return {"resident": [], "loads": {}}
    return {"resident": service.router.loaded, "loads": service.loads.by_name()}
