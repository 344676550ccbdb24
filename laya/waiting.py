"""Rows on their way through a forward pass: whose they are, since when they wait, and what a pass reports of them.

The queue that holds them and the threads that empty it are `laya.forwarding`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from laya.rows import Kind, Row, RowScores


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did, for metrics.

    Attributes:
        rows, tokens, padded: rows, their own tokens, and tokens computed with padding.
        seconds: how long the pass took.
        waited: seconds that its oldest row had waited.
        outcome: `"done"`, `"split"` (failed, its halves are tried), `"failed"` (a row that fails alone).
        out_of_memory: whether it failed for want of memory.
        budget: padded tokens that a pass may hold now: less than the limit for some time after memory ran out.
        contexts: the context variables of the calls with rows in it, as they were when the rows were handed in.
    """

    rows: int
    tokens: int
    padded: int
    seconds: float
    waited: float
    outcome: str
    out_of_memory: bool = False
    budget: int = 0
    contexts: tuple[Context, ...] = ()


@dataclass(slots=True, eq=False)
class Call:
    """The rows that one caller waits for. Its device's lock guards what changes.

    Attributes:
        scores: of each row, None until they are there.
        left: rows whose scores are not there.
        over: whether nobody waits for its rows any more: all are there, or it failed or was given up.
        error: what it failed with.
    """

    scores: list[RowScores | None]
    left: int
    over: bool = False
    in_passes: int = 0  # rows in passes under way
    error: BaseException | None = None
    context: Context = field(default_factory=copy_context)
    submitted: float = 0.0  # time.perf_counter(), as are the other two
    started: float = 0.0  # of the first pass with one of its rows
    finished: float = 0.0  # of the last
    # Held until it is over. An Event would do, at three times the cost, and every call has one.
    _held: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Let those who wait for it wait."""
        self._held.acquire()

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is over, at most so many seconds (None: without end); whether it is over."""
        if not self._held.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX)):
            return False
        self._held.release()
        return True

    def deliver(self, place: int, scores: RowScores, finished: float) -> None:
        """Take the scores of one row."""
        self.scores[place] = scores
        self.finished = finished
        self.left -= 1
        if self.left == 0:
            self.end()

    def fail(self, error: BaseException) -> None:
        """End it with an error, if it has none."""
        self.error = self.error or error
        self.end()

    def end(self) -> None:
        """Let whoever waits for it go on."""
        if not self.over:
            self.over = True
            self._held.release()


@dataclass(slots=True, eq=False)
class Waiting:
    """A row in the queue: whose it is and since when, and where it could be computed if it does not fit here."""

    kind: Kind
    row: Row
    call: Call
    place: int
    since: float
    on_cpu: Callable[[], Kind] | None
