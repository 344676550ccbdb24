"""The queue and the threads of one device: which rows go next, launching their pass, and what a failing one means.

Callers hand rows in and wait in `laya.batching`. Which rows make a pass is `laya.passes`'s; what a row holds is known
only to its kind of checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from laya.passes import LOOK_AHEAD, PassLimits, choose_pass
from laya.residency import free_memory
from laya.rows import Kind, RowScores
from laya.waiting import Call, PassReport, Waiting

logger = logging.getLogger(__name__)

SMALLER_FOR_S: Final = 60.0
"""Seconds for which the budget of tokens stays lower after the device ran out of memory."""

CPU_WASTE: Final = 0.03
"""Share of padding in a pass on a CPU: it computes padding at the price of tokens, and another pass costs it little."""

PASSES_AHEAD: Final = 8
"""Full passes that a choice looks ahead for rows of like length."""

UNDER_WAY: Final = 2
"""Passes that a device is given at a time: the one that it computes, and behind it one that is full already."""

IDLE_S: Final = 30.0
"""Seconds without a row after which a device's threads end; the next row starts others."""


class Device:
    """The queue of one device and the threads that empty it.

    A device that computes beside the host has two threads, either of which chooses a pass, launches it and waits for
    it. While one waits, the other launches the next, so that the device goes on at once however late the first one
    wakes. That next pass is launched early only when it is full; until then a free device is worth waiting for, since
    rows gather. Without load one thread does everything, and the other sleeps. A CPU computes in the thread that
    launches, so it has one.
    """

    def __init__(
        self,
        name: str,
        limits: PassLimits,
        batch_wait_s: float,
        report: Callable[[PassReport], None],
        cpu_fallback: bool,
    ) -> None:
        """Empty; see `laya.batching.Batching` for the limits, and `report` is told of every pass."""
        self._name = name
        self._full_limits = replace(limits, waste=min(limits.waste, CPU_WASTE)) if name == "cpu" else limits
        self._batch_wait_s = batch_wait_s
        self._tell = report
        self._cpu_fallback = cpu_fallback
        self._threads = 1 if name == "cpu" else UNDER_WAY
        self._limits = self._full_limits  # fewer tokens for a while after the device ran out of memory
        self._tokens_restored_at = 0.0
        self._queue: deque[Waiting] = deque()
        self._tokens_waiting = 0  # of the rows in the queue
        self._halves: deque[list[Waiting]] = deque()  # of passes that failed; each goes before anything else, alone
        self._stale = False  # some waiting rows may be nobody's any more
        self._under_way = 0
        self._began_at = self._ended_at = 0.0  # when the first pass under way began, the last ended; time.monotonic()
        self._launching = False  # a pass is chosen and not launched yet: passes are launched in the order of the choice
        self._life: object | None = None  # of the present threads, None while there are none
        lock = threading.Lock()
        self._changed = threading.Condition(lock)  # for a thread of its own that has nothing to do
        self._let_go = threading.Condition(lock)  # for those who gave their rows up

    @property
    def computing_s(self) -> float:
        """Seconds for which the pass under way has gone on; 0 without one."""
        with self._changed:
            return time.monotonic() - max(self._began_at, self._ended_at) if self._under_way else 0.0

    def add(self, waiting: Sequence[Waiting]) -> None:
        """Put the rows of a call at the end of the queue."""
        with self._changed:
            self._queue.extend(waiting)
            for one in waiting:
                self._tokens_waiting += one.row.tokens
            if self._life is None:
                self._life = object()
                for number in range(self._threads):
                    name = f"laya-forward-{self._name}-{number + 1}"
                    threading.Thread(target=self._run, args=(self._life,), name=name, daemon=True).start()
            elif self._could_launch():
                self._changed.notify()

    def fail(self, call: Call, error: BaseException) -> None:
        """End a call with an error; those of its rows that wait are dropped when the next pass is chosen."""
        with self._changed:
            call.fail(error)
            self._stale = True

    def drop(self, call: Call) -> None:
        """Give a call's rows up, and return when none is in a pass any more."""
        with self._changed:
            call.fail(RuntimeError("the rows were given up"))
            self._stale = True
            self._drop_stale()
            self._let_go.wait_for(lambda: call.in_passes == 0)

    def _run(self, life: object) -> None:
        while chosen := self._next_pass(life):
            started = time.monotonic()
            try:
                try:
                    collect = _launch(chosen)
                finally:
                    self._launched()
                self._finish(chosen, collect, started)
                del collect
            except BaseException as error:
                # Not a failing pass, which is split: whatever this is, callers must not wait for ever for it.
                logger.exception("device %s: sharing a forward pass failed", self._name)
                for one in chosen:
                    self.fail(one.call, error)
            calls = [one.call for one in chosen]
            del chosen  # an evicted Agent's last rows must not hold its memory until the next pass
            self._end(calls)
            del calls

    def _next_pass(self, life: object) -> list[Waiting]:
        """Wait until a pass may be launched, and take its rows; none when these threads' time is over."""
        with self._changed:
            while self._life is life:
                self._drop_stale()
                if self._could_launch():
                    if self._halves:
                        return self._begin(self._halves.popleft())
                    wait = self._queue[0].since + self._batch_wait_s - time.monotonic() if self._batch_wait_s else 0.0
                    if wait <= 0 or self._fills_a_pass():
                        return self._begin(self._take())
                    self._changed.wait(wait)
                elif self._queue or self._halves or self._under_way:
                    self._changed.wait()
                elif not self._changed.wait(IDLE_S) and not (self._queue or self._halves or self._under_way):
                    self._life = None
                    self._changed.notify_all()
            return []

    def _could_launch(self) -> bool:
        """Whether a thread that has nothing to do would have now. Half a failed pass goes before others, and alone."""
        if self._launching or not (self._queue or self._halves):
            return False
        if self._under_way:
            return self._under_way < self._threads and not self._halves and self._fills_a_pass()
        return True

    def _begin(self, chosen: list[Waiting]) -> list[Waiting]:
        if not self._under_way:
            self._began_at = time.monotonic()
        self._under_way += 1
        self._launching = True
        for one in chosen:
            one.call.in_passes += 1
        return chosen

    def _launched(self) -> None:
        """Let the other thread launch the next pass behind this one, if there is one already."""
        with self._changed:
            self._launching = False
            if self._could_launch():
                self._changed.notify()

    def _fills_a_pass(self) -> bool:
        """Whether the rows of the oldest one's checkpoint, near the front of the queue, reach a limit of a pass."""
        limits = self._limits_now()
        if len(self._queue) < limits.rows and self._tokens_waiting < limits.tokens:
            return False
        rows = tokens = 0
        for one in islice(self._queue, _look_ahead(limits)):
            if one.kind is self._queue[0].kind:
                rows, tokens = rows + 1, tokens + one.row.tokens
                if rows >= limits.rows or tokens >= limits.tokens:
                    return True
        return False

    def _drop_stale(self) -> None:
        """Let go of rows whose call is over."""
        if not self._stale:
            return
        self._stale = False
        self._queue = deque(one for one in self._queue if not one.call.over)
        self._tokens_waiting = sum(one.row.tokens for one in self._queue)
        halves = [[one for one in half if not one.call.over] for half in self._halves]
        self._halves = deque(half for half in halves if half)

    def _take(self) -> list[Waiting]:
        """Remove the rows of the next pass from the queue: those of the oldest row's checkpoint that fit with it."""
        limits = self._limits_now()
        seen: list[Waiting] = []  # from the front of the queue, which alone is touched: it may be long
        same: list[Waiting] = []
        while self._queue and len(same) < _look_ahead(limits):
            one = self._queue.popleft()
            seen.append(one)
            if one.kind is seen[0].kind:
                same.append(one)
        chosen = [same[at] for at in choose_pass([one.row.tokens for one in same], limits)]
        gone = set(map(id, chosen))
        self._queue.extendleft(one for one in reversed(seen) if id(one) not in gone)
        self._tokens_waiting -= sum(one.row.tokens for one in chosen)
        return chosen

    def _limits_now(self) -> PassLimits:
        if self._limits is not self._full_limits and time.monotonic() >= self._tokens_restored_at:
            logger.info("device %s: %d tokens a pass again", self._name, self._full_limits.tokens)
            self._limits = self._full_limits
        return self._limits

    def _finish(self, chosen: list[Waiting], collect: Callable[[], list[RowScores]], launched: float) -> None:
        """Wait for a pass and hand its scores out."""
        try:
            pairs = list(zip(chosen, collect(), strict=True))
        except Exception as error:  # noqa: BLE001  # the error of its rows' calls, not of this thread
            self._after_failure(chosen, error, self._time(chosen, launched))
            return
        self._report(chosen, self._time(chosen, launched), "done")
        finished = time.perf_counter()
        with self._changed:
            for one, scores in pairs:
                one.call.deliver(one.place, scores, finished)

    def _time(self, chosen: list[Waiting], launched: float) -> float:
        """When a pass that has just ended began: when it was launched, or when the one before it ended."""
        with self._changed:
            started, self._ended_at = max(launched, self._ended_at), time.monotonic()
            began = time.perf_counter() - (self._ended_at - started)
            for one in chosen:
                one.call.started = one.call.started or began
        return started

    def _end(self, calls: Sequence[Call]) -> None:
        """A pass with rows of these calls is over, whatever came of it."""
        with self._changed:
            self._under_way -= 1
            for call in calls:
                call.in_passes -= 1
            self._let_go.notify_all()

    def _after_failure(self, chosen: list[Waiting], error: Exception, started: float) -> None:
        """Cut a failed pass in halves, which are tried next, until the failing rows stand alone."""
        lacks_memory = is_out_of_memory(error)
        outcome = "split" if len(chosen) > 1 else "failed"
        if lacks_memory:
            error.__traceback__ = None  # its frames hold the tensors that did not fit
            self._give_way(chosen)
        self._report(chosen, started, outcome, out_of_memory=lacks_memory)
        if len(chosen) > 1:
            half = len(chosen) // 2
            with self._changed:
                self._halves.extendleft((chosen[half:], chosen[:half]))
            return
        (alone,) = chosen
        if lacks_memory and self._cpu_fallback and alone.on_cpu is not None:
            self._compute_on_cpu(alone, alone.on_cpu)
        else:
            self.fail(alone.call, error)

    def _give_way(self, chosen: list[Waiting]) -> None:
        """Lower the budget of tokens to half of what just failed, for some time, and free what can be freed."""
        padded = _padded(chosen)
        with self._changed:
            self._limits = replace(self._full_limits, tokens=max(1, min(self._limits.tokens, padded // 2)))
            self._tokens_restored_at = time.monotonic() + SMALLER_FOR_S
        logger.warning(
            "device %s ran out of memory on a pass of %d rows and %d padded tokens: %d tokens a pass for %.0f s",
            self._name,
            len(chosen),
            padded,
            self._limits.tokens,
            SMALLER_FOR_S,
        )
        free_memory()

    def _compute_on_cpu(self, alone: Waiting, on_cpu: Callable[[], Kind]) -> None:
        logger.warning("device %s: a row of %d tokens is computed on the CPU", self._name, alone.row.tokens)
        try:
            (scores,) = on_cpu().forward([alone.row])
        except Exception as error:  # noqa: BLE001  # the error of its call
            self.fail(alone.call, error)
        else:
            finished = time.perf_counter()
            with self._changed:
                alone.call.deliver(alone.place, scores, finished)

    def _report(self, chosen: list[Waiting], started: float, outcome: str, *, out_of_memory: bool = False) -> None:
        self._tell(
            PassReport(
                rows=len(chosen),
                tokens=sum(one.row.tokens for one in chosen),
                padded=_padded(chosen),
                seconds=self._ended_at - started,
                waited=started - min(one.since for one in chosen),
                outcome=outcome,
                out_of_memory=out_of_memory,
                contexts=tuple({id(one.call): one.call.context for one in chosen}.values()),
                budget=self._limits.tokens,
            )
        )


def _look_ahead(limits: PassLimits) -> int:
    return min(LOOK_AHEAD, PASSES_AHEAD * limits.rows)


def _launch(chosen: Sequence[Waiting]) -> Callable[[], list[RowScores]]:
    """Begin a pass; what is returned waits for its scores, and raises also what beginning it failed with."""
    try:
        return chosen[0].kind.launch([one.row for one in chosen])
    except Exception as error:  # noqa: BLE001  # raised where the pass is waited for, after the one before it
        return partial(_reraise, error)


def _reraise(error: Exception) -> list[RowScores]:
    raise error


def _padded(chosen: Sequence[Waiting]) -> int:
    return len(chosen) * max(one.row.tokens for one in chosen)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a pass failed for want of memory: torch's own error, Python's, or one that says so."""
    if isinstance(error, MemoryError) or type(error).__name__ in {"OutOfMemoryError", "AcceleratorOutOfMemoryError"}:
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
