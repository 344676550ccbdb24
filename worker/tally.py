"""What a worker holds, what it is at, and what it has answered: the figures behind `laya-workers status`.

Only counts. The Router's hooks tell it of loads, Celery's signals of requests; who asks is answered by
`worker.inspection`.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from celery import signals

from laya import BaseHook, PredictContext
from producer.shown import plain
from worker.clock import steady

RATE_SECONDS: Final = 10
"""The whole seconds over which a rate is taken: long enough to be steady, short enough to follow."""


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """The latest load of a checkpoint that failed: when, in Unix time, and why."""

    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment; times are Unix times in seconds, as `worker.clock.steady` has them.

    Attributes:
        now: the moment.
        since: checkpoints in memory, and since when.
        loading: those that are being loaded or are next to be, and since when.
        failures: those whose latest load failed.
        in_flight: messages that are being worked on.
        answered: answers given since the start, by checkpoint.
        failed: requests answered with an error since the start.
        rates: answers a second by checkpoint, over the last whole seconds.
    """

    now: float
    since: Mapping[str, float]
    loading: Mapping[str, float]
    failures: Mapping[str, FailedLoad]
    in_flight: int
    answered: Mapping[str, int]
    failed: int
    rates: Mapping[str, float]


class Tally(BaseHook):
    """Counts for one process. Safe to use from many threads."""

    def __init__(self, clock: Callable[[], float] = steady) -> None:
        """Start at nothing."""
        self._clock = clock
        self._lock = threading.Lock()
        self.started = clock()
        self._since: dict[str, float] = {}
        self._loading: dict[str, float] = {}
        self._failures: dict[str, FailedLoad] = {}
        self._in_flight: set[str] = set()
        self._answered: Counter[str] = Counter()
        self._failed = 0
        self._seconds: deque[tuple[int, Counter[str]]] = deque(maxlen=RATE_SECONDS + 1)

    def now(self) -> float:
        """The time by which this worker notes times."""
        return self._clock()

    # --- checkpoints ---

    def on_load(self, ctx: PredictContext) -> None:
        """`ctx.model` is in memory from now on."""
        with self._lock:
            self._since[str(ctx.model)] = self._clock()
            self._failures.pop(str(ctx.model), None)

    def on_evict(self, ctx: PredictContext) -> None:
        """`ctx.model` has gone."""
        with self._lock:
            self._since.pop(str(ctx.model), None)

    @contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """A checkpoint is being loaded for the block; an error that leaves it is remembered as the reason."""
        with self._lock:
            outer = name not in self._loading  # an operator's load holds it already
            since = self._loading.setdefault(name, self._clock())
        try:
            yield
        except Exception as error:
            with self._lock:
                known = self._failures.get(name)
                if known is None or known.at < since:  # else a block within this one knew the reason first
                    self._failures[name] = FailedLoad(self._clock(), str(error) or type(error).__name__)
            raise
        finally:
            if outer:
                with self._lock:
                    del self._loading[name]

    # --- requests ---

    def begin(self, task_id: str) -> None:
        """A message is being worked on."""
        with self._lock:
            self._in_flight.add(task_id)

    def end(self, task_id: str, results: Any) -> None:
        """It has ended with a result, a list of them, or something else, which counts as an error."""
        entries = results if isinstance(results, list) else [results]
        with self._lock:
            if task_id not in self._in_flight:
                return
            self._in_flight.discard(task_id)
            answered = Counter(name for name in map(_checkpoint_of, entries) if name is not None)
            self._answered += answered
            self._failed += len(entries) - answered.total()
            second = int(self._clock())
            if not self._seconds or self._seconds[-1][0] != second:
                self._seconds.append((second, Counter()))
            self._seconds[-1][1].update(answered)

    def watch(self, tasks: set[str]) -> None:
        """Count the tasks of these names, by Celery's signals, for as long as the process lives."""

        def before(task_id: str, task: Any, **_: Any) -> None:
            if task.name in tasks:
                self.begin(task_id)

        def after(task_id: str, retval: Any, **_: Any) -> None:
            self.end(task_id, plain(retval))

        signals.task_prerun.connect(before, weak=False)
        signals.task_postrun.connect(after, weak=False)

    def snapshot(self) -> Snapshot:
        """Everything now."""
        with self._lock:
            now = self._clock()
            return Snapshot(
                now=now,
                since=dict(self._since),
                loading=dict(self._loading),
                failures=dict(self._failures),
                in_flight=len(self._in_flight),
                answered=dict(self._answered),
                failed=self._failed,
                rates=self._rates(now),
            )

    def _rates(self, now: float) -> dict[str, float]:
        """Over the last whole seconds, or those since the start where they are fewer."""
        this = int(now)
        recent: Counter[str] = Counter()
        for second, answered in self._seconds:
            if this - RATE_SECONDS <= second < this:
                recent += answered
        over = max(1.0, min(RATE_SECONDS, this - self.started))
        return {name: count / over for name, count in recent.items()}


def _checkpoint_of(result: Any) -> str | None:
    """Which checkpoint answered; None for an error."""
    if not isinstance(result, Mapping) or "answers" not in result:
        return None
    return str((result.get("routing") or {}).get("model") or "unknown")
