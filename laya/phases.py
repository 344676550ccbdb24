"""How long the parts of a call took, for metrics and traces: whoever runs a part tells, whoever wants to know records.

A recorder is a list that is current for a block in one thread. Where nobody records, telling costs a look.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from laya.within import within

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


def recording(*into: list[Phase]) -> within[tuple[list[Phase], ...]]:
    """Append what is told in this block to each of these lists, beside those that record already."""
    return within(_recorders, (*_recorders.get(), *into))


def tell(name: str, started: float, ended: float) -> None:
    """Record a part that lay between two readings of `time.perf_counter()`."""
    if recorders := _recorders.get():
        phase = Phase(name, started, ended - started)
        for recorder in recorders:
            recorder.append(phase)


class phase:  # noqa: N801 - used as a function is
    """Record the block as a part, also when it fails."""

    __slots__ = ("_name", "_started")

    def __init__(self, name: str) -> None:
        """Name the part."""
        self._name = name

    def __enter__(self) -> None:
        """Begin it."""
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        """End it."""
        tell(self._name, self._started, time.perf_counter())
