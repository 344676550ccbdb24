"""What a worker tells about itself when it is asked: `celery -A worker inspect resident`.

The command line, the demo and an operator ask over Celery's remote control. Nothing here changes anything.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict
from functools import cache
from typing import Any, TypedDict

from celery.worker.control import inspect_command

from producer.checkpoints import checkpoint_of
from worker.clock import clock


class Holdings(TypedDict):
    """The answer. Times are Unix times of the worker's clock as it was set at its start, in seconds.

    Attributes:
        resident: checkpoints in memory, least recently used first; `since` says since when each.
        loads: how often each was loaded since the start.
        loading: those that are being loaded, and since when.
        failures: those whose latest load failed: `at` and `reason`.
        pinned: those that LAYA_PRELOAD keeps in memory.
        max_loaded: how many are held at once.
        serves: checkpoints whose queues this worker reads, when it holds them or fetches them.
        device: where it computes.
        in_flight: messages that are being worked on.
        answered, failed: requests since the start, by checkpoint, and those that ended with an error.
        rates: answers a second, by checkpoint.
        pid, host, started, now: which process, since when, and when it answered.
        clock_ahead: seconds that its machine's clock is ahead of the broker's; None as long as that is not known.
    """

    resident: list[str]
    since: dict[str, float]
    loads: dict[str, int]
    loading: dict[str, float]
    failures: dict[str, dict[str, Any]]
    pinned: list[str]
    max_loaded: int
    serves: list[str]
    device: str
    in_flight: int
    answered: dict[str, int]
    failed: int
    rates: dict[str, float]
    pid: int
    host: str
    started: float
    now: float
    clock_ahead: float | None


@inspect_command(name="resident")  # type: ignore[untyped-decorator]
def resident(state: Any, **_: Any) -> Holdings:
    """Checkpoints in memory and being loaded, requests in flight, answers a second."""
    service = state.app.service
    tally = service.tally.snapshot()
    return {
        "resident": service.router.loaded,
        "since": dict(tally.since),
        "loads": service.loads.by_name(),
        "loading": dict(tally.loading),
        "failures": {name: asdict(failure) for name, failure in tally.failures.items()},
        "pinned": list(service.settings.preloaded),
        "max_loaded": service.router.max_loaded,
        "serves": _serves(state),
        "device": _device(service.settings.device),
        "in_flight": tally.in_flight,
        "answered": dict(tally.answered),
        "failed": tally.failed,
        "rates": {name: round(rate, 3) for name, rate in tally.rates.items()},
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": service.tally.started,
        "now": tally.now,
        "clock_ahead": None if (ahead := clock.ahead) is None else round(ahead, 3),
    }


@inspect_command(name="cache")  # type: ignore[untyped-decorator]
def cache_figures(state: Any, **_: Any) -> dict[str, Any]:
    """What the skip cache has done since the start: hits, misses and the rest. Empty without a cache."""
    from hooks.skip_cache import SkipCache  # noqa: PLC0415 - what it needs is imported where it is used

    caches = [hook for hook in state.app.service.router.hooks if isinstance(hook, SkipCache)]
    return asdict(caches[0].stats()) if caches else {}


@inspect_command(name="passes")  # type: ignore[untyped-decorator]
def passes(state: Any, **_: Any) -> dict[str, Any]:
    """Forward passes since the start, and those that ran out of memory; `worker.passcount` says what each figure is."""
    return asdict(state.app.service.passes.snapshot())


def _serves(state: Any) -> list[str]:
    """The checkpoints of the queues that the consumer was given, by Celery's `--queues` or by the settings."""
    names = (checkpoint_of(queue) for queue in state.app.amqp.queues.consume_from)
    return [name for name in names if name is not None]


@cache
def _device(wanted: str | None) -> str:
    from laya.device import pick_device  # noqa: PLC0415 - imports torch, which a worker that serves has

    try:
        return str(pick_device(wanted))
    except (RuntimeError, ValueError):
        return f"{wanted} (not there)"
