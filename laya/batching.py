"""Shared forward passes: the rows of all calls in flight wait here, and go through the model together.

A device takes what is there whenever it is free, for one checkpoint at a time, oldest rows first. Callers wait for
their own rows only. A pass that fails is split until the failing rows stand alone, and only their calls fail. The queue
and the threads of a device are `laya.forwarding`'s; which rows make a pass is `laya.passes`'s.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar

from laya.forwarding import Device
from laya.passes import MAX_ROWS, MAX_TOKENS, MAX_WASTE, PassLimits
from laya.phases import BATCH_WAIT, FORWARD, tell
from laya.rows import Kind, Row, RowScores
from laya.waiting import Call, PassReport, Waiting
from laya.within import within

__all__ = ["Batching", "DeadlinePassed", "PassReport", "Pending", "answer_by", "time_left"]

logger = logging.getLogger(__name__)

_deadline: ContextVar[float | None] = ContextVar("laya_batching_deadline", default=None)


class DeadlinePassed(TimeoutError):
    """The answer was not ready by the deadline of `answer_by`; it was still waiting for a forward pass."""


def answer_by(deadline: float | None) -> within[float | None]:
    """Give calls in this block until `deadline` (`time.monotonic()` seconds; None: no end), then a `DeadlinePassed`."""
    return within(_deadline, deadline)


def time_left() -> float | None:
    """Seconds until the deadline of the `answer_by` around this call, 0 when it has passed; None without one."""
    deadline = _deadline.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())


class Pending:
    """Rows handed in and not yet waited for."""

    def __init__(self, call: Call, device: Device | None) -> None:
        """Stand for a call; one without rows has no device."""
        self._call, self._device = call, device

    def drop(self) -> None:
        """Give the rows up, and return when none of them is in a pass any more."""
        if self._device is not None:
            self._device.drop(self._call)

    def result(self) -> list[RowScores]:
        """Wait for the scores, in the order of the rows.

        Raises:
            DeadlinePassed: the deadline of `answer_by` passed; rows that have not been computed are dropped.
            Exception: what the first of the rows failed with.
        """
        call = self._call
        try:
            if not call.wait(time_left()):
                raise DeadlinePassed("the answer was not ready by its deadline: it still waited for a forward pass")
        except BaseException as error:
            if self._device is not None:  # the caller has given up: its rows are dropped when their turn comes
                self._device.fail(call, error)
            raise
        if call.error is not None:
            raise copy.copy(call.error) from call.error
        if call.scores:
            tell(BATCH_WAIT, call.submitted, call.started)
            tell(FORWARD, call.started, call.finished)
        return [scores for scores in call.scores if scores is not None]


class Batching:
    """Shares forward passes among the Agents of a process that were given it. Safe to use from many threads."""

    def __init__(
        self,
        max_batch_tokens: int = MAX_TOKENS,
        batch_wait_ms: float = 0.0,
        max_rows: int = MAX_ROWS,
        max_waste: float = MAX_WASTE,
        observe: Callable[[PassReport], None] | None = None,
        cpu_fallback: bool = False,
    ) -> None:
        """Share passes within these limits.

        Args:
            max_batch_tokens: padded tokens a pass.
            batch_wait_ms: milliseconds that a free device waits for more rows after the first; 0 computes at once.
            max_rows, max_waste: see `laya.passes.PassLimits`.
            observe: called after every pass, in a thread of the device; what it raises is logged.
            cpu_fallback: compute a row that does not fit the device alone on the CPU, instead of failing its call.

        Raises:
            ValueError: a limit that no pass could keep.
        """
        if max_batch_tokens < 1 or max_rows < 1 or not 0 <= max_waste < 1 or batch_wait_ms < 0:
            raise ValueError(
                "a pass needs max_batch_tokens and max_rows of at least 1, max_waste in [0, 1) and batch_wait_ms of at "
                f"least 0; got {max_batch_tokens}, {max_rows}, {max_waste}, {batch_wait_ms}"
            )
        self.limits = PassLimits(max_batch_tokens, max_rows, max_waste)
        self.batch_wait_s = batch_wait_ms / 1000
        self.cpu_fallback = cpu_fallback
        self._observe = observe
        self._devices: dict[str, Device] = {}
        self._lock = threading.Lock()

    def submit(self, kind: Kind, rows: Sequence[Row], on_cpu: Callable[[], Kind] | None = None) -> Pending:
        """Hand in the rows of one call; `Pending.result` waits for their scores.

        Args:
            kind: the checkpoint that encoded the rows; only rows of one checkpoint share a pass.
            rows: the rows of one call.
            on_cpu: the same checkpoint on the CPU, for `cpu_fallback`; without it such rows fail.
        """
        call = Call([None] * len(rows), len(rows), submitted=time.perf_counter())
        if not rows:
            call.end()
            return Pending(call, None)
        name = str(kind.device)
        with self._lock:
            device = self._devices.get(name) or self._devices.setdefault(name, self._device(name))
        now = time.monotonic()
        device.add([Waiting(kind, row, call, place, now, on_cpu) for place, row in enumerate(rows)])
        return Pending(call, device)

    @property
    def computing_s(self) -> float:
        """Seconds for which the oldest pass under way has gone on, on whichever device; 0 without one."""
        with self._lock:
            devices = list(self._devices.values())
        return max((device.computing_s for device in devices), default=0.0)

    def _device(self, name: str) -> Device:
        return Device(name, self.limits, self.batch_wait_s, self._report, self.cpu_fallback)

    def _report(self, report: PassReport) -> None:
        if self._observe is None:
            return
        try:
            self._observe(report)
        except Exception:
            logger.exception("the observer of forward passes failed")
