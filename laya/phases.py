"""How long the parts of a call took, for metrics and traces: whoever runs a part tells, whoever wants to know records.

A recorder is a list that is current for a block in one thread. Where nobody records, telling costs a look.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

LOAD: Final = "load"
"""Building the checkpoint, or waiting for the thread that builds it."""

TOKENISE: Final = "tokenise"
"""States and questions to rows, in the caller's thread."""

BATCH_WAIT: Final = "batch_wait"
"""From handing rows in to the start of the first pass with one of them."""

FORWARD: Final = "forward"
"""From the start of the first pass with a row of the call to the end of its last."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a call.

    Attributes:
        name: one of the names above, or a hook's own.
        started: `time.perf_counter()` at its start.
        seconds: how long it took.
    """

    name: str
    started: float
    seconds: float


_recorders: ContextVar[tuple[list[Phase], ...]] = ContextVar("laya_phases", default=())


@contextmanager
def recording(*into: list[Phase]) -> Iterator[None]:
    """Append what is told in this block to each of these lists, beside those that record already."""
    token = _recorders.set((*_recorders.get(), *into))
    try:
        yield
    finally:
        _recorders.reset(token)


def tell(name: str, started: float, ended: float) -> None:
    """Record a part that lay between two readings of `time.perf_counter()`."""
    if recorders := _recorders.get():
        phase = Phase(name, started, ended - started)
        for recorder in recorders:
            recorder.append(phase)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Record the block as a part, also when it fails."""
    started = time.perf_counter()
    try:
        yield
    finally:
        tell(name, started, time.perf_counter())
