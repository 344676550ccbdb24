"""Shared forward passes: the rows of all calls in flight wait here, and go through the model together.

One thread a device takes what is there whenever the device is free, for one checkpoint at a time, oldest rows first.
Callers wait for their own rows only. A pass that fails is split until the failing rows stand alone, and only their
calls fail. Which rows make a pass is `laya.passes`'s; what a row holds is known only to its kind of checkpoint.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field, replace
from typing import Final

from laya.passes import LOOK_AHEAD, MAX_ROWS, MAX_TOKENS, MAX_WASTE, PassLimits, choose_pass
from laya.phases import BATCH_WAIT, FORWARD, tell
from laya.residency import free_memory
from laya.rows import Kind, Row, RowScores

logger = logging.getLogger(__name__)

SMALLER_FOR_S: Final = 60.0
"""Seconds for which the budget of tokens stays lower after the device ran out of memory."""

CPU_WASTE: Final = 0.03
"""Share of padding in a pass on a CPU: it computes padding at the price of tokens, and another pass costs it little."""

PASSES_AHEAD: Final = 8
"""Full passes that a choice looks ahead for rows of like length."""

IDLE_S: Final = 30.0
"""Seconds without a row after which a device's thread ends; the next row starts another."""

_deadline: ContextVar[float | None] = ContextVar("laya_batching_deadline", default=None)


class DeadlinePassed(TimeoutError):
    """The answer was not ready by the deadline of `answer_by`; it was still waiting for a forward pass."""


@contextmanager
def answer_by(deadline: float | None) -> Iterator[None]:
    """Give calls in this block until `deadline` (`time.monotonic()` seconds; None: no end), then a `DeadlinePassed`."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def time_left() -> float | None:
    """Seconds until the deadline of the `answer_by` around this call, 0 when it has passed; None without one."""
    deadline = _deadline.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did, for metrics.

    Attributes:
        rows, tokens, padded: rows, their own tokens, and tokens computed with padding.
        seconds: how long the pass took.
        waited: seconds that its oldest row had waited.
        outcome: `"done"`, `"split"` (failed, its halves are tried), `"failed"` (a row that fails alone).
        out_of_memory: whether it failed for want of memory.
        contexts: the context variables of the calls with rows in it, as they were when the rows were handed in.
    """

    rows: int
    tokens: int
    padded: int
    seconds: float
    waited: float
    outcome: str
    out_of_memory: bool = False
    contexts: tuple[Context, ...] = ()


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass(slots=True, eq=False)
class _Call:
    """The rows that one caller waits for."""

    scores: list[RowScores | None]
    left: int
    ended: threading.Event = field(default_factory=threading.Event)
    idle: threading.Event = field(default_factory=_set_event)  # none of its rows is in a pass under way
    error: BaseException | None = None
    context: Context = field(default_factory=copy_context)
    submitted: float = 0.0  # time.perf_counter(), as are the other two
    started: float = 0.0  # of the first pass with one of its rows
    finished: float = 0.0  # of the last

    @property
    def over(self) -> bool:
        return self.ended.is_set()

    def deliver(self, place: int, scores: RowScores) -> None:
        self.scores[place] = scores
        self.left -= 1
        if self.left == 0:
            self.ended.set()

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self.ended.set()


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    kind: Kind
    row: Row
    call: _Call
    place: int
    since: float
    on_cpu: Callable[[], Kind] | None


class Pending:
    """Rows handed in and not yet waited for."""

    def __init__(self, call: _Call, device: _Device | None) -> None:
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
            if not call.ended.wait(time_left()):
                raise DeadlinePassed("the answer was not ready by its deadline: it still waited for a forward pass")
        except BaseException as error:
            call.fail(error)  # the caller has given up: its rows are dropped when their turn comes
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
            observe: called after every pass, in the device's thread; what it raises is logged.
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
        self._devices: dict[str, _Device] = {}
        self._lock = threading.Lock()

    def submit(self, kind: Kind, rows: Sequence[Row], on_cpu: Callable[[], Kind] | None = None) -> Pending:
        """Hand in the rows of one call; `Pending.result` waits for their scores.

        Args:
            kind: the checkpoint that encoded the rows; only rows of one checkpoint share a pass.
            rows: the rows of one call.
            on_cpu: the same checkpoint on the CPU, for `cpu_fallback`; without it such rows fail.
        """
        call = _Call([None] * len(rows), len(rows), submitted=time.perf_counter())
        if not rows:
            call.ended.set()
            return Pending(call, None)
        name = str(kind.device)
        with self._lock:
            device = self._devices.get(name) or self._devices.setdefault(name, _Device(self, name))
        now = time.monotonic()
        device.add([_Waiting(kind, row, call, place, now, on_cpu) for place, row in enumerate(rows)])
        return Pending(call, device)

    def report(self, report: PassReport) -> None:
        """Tell the observer of a pass."""
        if self._observe is None:
            return
        try:
            self._observe(report)
        except Exception:
            logger.exception("the observer of forward passes failed")


class _Device:
    """The queue and the thread of one device."""

    def __init__(self, batching: Batching, name: str) -> None:
        self._batching = batching
        self._name = name
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._tokens = batching.limits.tokens  # lower for a while after the device ran out of memory
        self._tokens_restored_at = 0.0

    def add(self, waiting: Sequence[_Waiting]) -> None:
        with self._changed:
            self._queue.extend(waiting)
            self._changed.notify()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name=f"laya-forward-{self._name}", daemon=True).start()

    def drop(self, call: _Call) -> None:
        with self._changed:
            call.fail(RuntimeError("the rows were given up"))
            self._drop_given_up()
        call.idle.wait()

    def _run(self) -> None:
        while chosen := self._next_pass():
            try:
                self._compute(chosen)
            except BaseException as error:
                # Not a failing pass, which is split: whatever this is, callers must not wait for ever for it.
                logger.exception("device %s: sharing a forward pass failed", self._name)
                for one in chosen:
                    one.call.fail(error)
            calls = [one.call for one in chosen]
            del chosen  # an evicted Agent's last rows must not hold its memory until the next pass
            for call in calls:
                call.idle.set()

    def _next_pass(self) -> list[_Waiting] | None:
        """Wait for rows and take those of the next pass; None when there were none for a while."""
        with self._changed:
            while True:
                self._drop_given_up()
                if not self._queue:
                    if not self._changed.wait_for(lambda: bool(self._queue), timeout=IDLE_S):
                        self._running = False
                        return None
                    continue
                wait = self._queue[0].since + self._batching.batch_wait_s - time.monotonic()
                if wait > 0 and not self._fills_a_pass():
                    self._changed.wait(wait)
                    continue
                return self._take()

    def _fills_a_pass(self) -> bool:
        limits = self._limits()
        return len(self._queue) >= limits.rows or sum(one.row.tokens for one in self._queue) >= limits.tokens

    def _drop_given_up(self) -> None:
        if any(one.call.over for one in self._queue):
            self._queue = deque(one for one in self._queue if not one.call.over)

    def _take(self) -> list[_Waiting]:
        """Remove the rows of the next pass from the queue: those of the oldest row's checkpoint that fit with it."""
        limits = self._limits()
        seen: list[_Waiting] = []  # from the front of the queue, which alone is touched: it may be long
        same: list[_Waiting] = []
        look_ahead = min(LOOK_AHEAD, PASSES_AHEAD * limits.rows)
        while self._queue and len(same) < look_ahead:
            one = self._queue.popleft()
            seen.append(one)
            if one.kind is seen[0].kind:
                same.append(one)
        chosen = [same[at] for at in choose_pass([one.row.tokens for one in same], limits)]
        for one in chosen:
            one.call.idle.clear()
        gone = set(map(id, chosen))
        self._queue.extendleft(one for one in reversed(seen) if id(one) not in gone)
        return chosen

    def _limits(self) -> PassLimits:
        if self._tokens < self._batching.limits.tokens and time.monotonic() >= self._tokens_restored_at:
            logger.info("device %s: %d tokens a pass again", self._name, self._batching.limits.tokens)
            self._tokens = self._batching.limits.tokens
        waste = self._batching.limits.waste
        if self._name == "cpu":
            waste = min(waste, CPU_WASTE)
        return replace(self._batching.limits, tokens=self._tokens, waste=waste)

    def _compute(self, chosen: list[_Waiting]) -> None:
        """Run one pass; when it fails, its halves, until the failing rows stand alone."""
        chosen = [one for one in chosen if not one.call.over]
        if not chosen:
            return
        started, began = time.monotonic(), time.perf_counter()
        for one in chosen:
            one.call.started = one.call.started or began
        try:
            scores = chosen[0].kind.forward([one.row for one in chosen])
        except Exception as error:  # noqa: BLE001  # the error of its rows' calls, not of this thread
            self._after_failure(chosen, error, started)
            return
        self._report(chosen, started, "done")
        finished = time.perf_counter()
        for one, row_scores in zip(chosen, scores, strict=True):
            one.call.finished = finished
            one.call.deliver(one.place, row_scores)

    def _after_failure(self, chosen: list[_Waiting], error: Exception, started: float) -> None:
        lacks_memory = is_out_of_memory(error)
        outcome = "split" if len(chosen) > 1 else "failed"
        self._report(chosen, started, outcome, out_of_memory=lacks_memory)
        if lacks_memory:
            error.__traceback__ = None  # its frames hold the tensors that did not fit
            self._give_way(chosen)
        if len(chosen) > 1:
            half = len(chosen) // 2
            self._compute(chosen[:half])
            self._compute(chosen[half:])
            return
        (alone,) = chosen
        if lacks_memory and self._batching.cpu_fallback and alone.on_cpu is not None:
            self._compute_on_cpu(alone, alone.on_cpu)
        else:
            alone.call.fail(error)

    def _give_way(self, chosen: list[_Waiting]) -> None:
        """Lower the budget of tokens to half of what just failed, for some time, and free what can be freed."""
        padded = _padded(chosen)
        self._tokens = max(1, min(self._tokens, padded // 2))
        self._tokens_restored_at = time.monotonic() + SMALLER_FOR_S
        logger.warning(
            "device %s ran out of memory on a pass of %d rows and %d padded tokens: %d tokens a pass for %.0f s",
            self._name,
            len(chosen),
            padded,
            self._tokens,
            SMALLER_FOR_S,
        )
        free_memory()

    def _compute_on_cpu(self, alone: _Waiting, on_cpu: Callable[[], Kind]) -> None:
        logger.warning("device %s: a row of %d tokens is computed on the CPU", self._name, alone.row.tokens)
        try:
            (scores,) = on_cpu().forward([alone.row])
        except Exception as error:  # noqa: BLE001  # the error of its call
            alone.call.fail(error)
        else:
            alone.call.finished = time.perf_counter()
            alone.call.deliver(alone.place, scores)

    def _report(self, chosen: list[_Waiting], started: float, outcome: str, *, out_of_memory: bool = False) -> None:
        self._batching.report(
            PassReport(
                rows=len(chosen),
                tokens=sum(one.row.tokens for one in chosen),
                padded=_padded(chosen),
                seconds=time.monotonic() - started,
                waited=started - min(one.since for one in chosen),
                outcome=outcome,
                out_of_memory=out_of_memory,
                contexts=tuple({id(one.call): one.call.context for one in chosen}.values()),
            )
        )


def _padded(chosen: Sequence[_Waiting]) -> int:
    return len(chosen) * max(one.row.tokens for one in chosen)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a pass failed for want of memory: torch's own error, Python's, or one that says so."""
    if isinstance(error, MemoryError) or type(error).__name__ in {"OutOfMemoryError", "AcceleratorOutOfMemoryError"}:
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error).lower()
