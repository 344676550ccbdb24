"""The soak's ledger: every request that was submitted, what became of it, when, and whether that ever changed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from celery import states

from producer.errors import BrokerUnavailable

ANSWERED: Final = "answered"
WAITING: Final = "still waiting"

EXPECTED: Final[dict[str, frozenset[str]]] = {
    "one": frozenset({ANSWERED}),
    "many": frozenset({ANSWERED}),
    "nap": frozenset({ANSWERED}),
    "deadline": frozenset({ANSWERED, "DeadlineExceeded"}),
    "invalid": frozenset({"InvalidRequest"}),
    "raise": frozenset({"PredictionFailed"}),
    "hang": frozenset({"PoisonedRequest"}),
    "hang with a deadline": frozenset({"DeadlineExceeded"}),
    "die": frozenset({"PoisonedRequest"}),
}
"""What a request of each kind may come to."""


@dataclass(slots=True, eq=False)
class Entry:
    """One message: its kind, how many requests it carries, when it was submitted and settled, and its outcome."""

    id: str
    kind: str
    requests: int
    submitted: float
    settled: float | None = None
    outcome: str | None = None


@dataclass(slots=True)
class Ledger:
    """All of them. Safe to use from many threads."""

    entries: dict[str, Entry] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[float, float, str]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def submit(self, task_id: str, kind: str, requests: int = 1) -> None:
        """A message that is about to be published."""
        with self._lock:
            self.entries[task_id] = Entry(task_id, kind, requests, time.monotonic())

    def refuse(self, task_id: str, error: Exception) -> None:
        """The publish failed, with an error that told its caller."""
        with self._lock:
            self.refused[type(error).__name__] += 1
            self.entries.pop(task_id, None)

    def settle(self, task_id: str, meta: dict[str, Any]) -> None:
        """An outcome that a caller saw. One that is another than the first is a second answer."""
        seen = outcome_of(meta)
        with self._lock:
            entry = self.entries.get(task_id)
            if entry is None:
                return
            if entry.outcome is None:
                entry.outcome, entry.settled = seen, time.monotonic()
            elif entry.outcome != seen:
                self.changed.append(f"{task_id} ({entry.kind}): {entry.outcome}, then {seen}")

    def wait(self, ids: Collection[str]) -> None:
        """Messages that are still where they can be taken from: late, and not lost."""
        with self._lock:
            for task_id in ids:
                entry = self.entries.get(task_id)
                if entry is not None and entry.outcome is None:
                    entry.outcome = WAITING

    def open(self) -> list[str]:
        """Ids of messages without an outcome."""
        with self._lock:
            return [entry.id for entry in self.entries.values() if entry.outcome is None]

    def fault(self, what: str, begun: float, felt_until: float) -> None:
        """A fault, and the time in which it is felt, by `time.monotonic`."""
        with self._lock:
            self.faults.append((begun, felt_until, what))

    def outcomes(self) -> Counter[tuple[str, str]]:
        """Requests by kind and outcome; those without one are `lost`."""
        found: Counter[tuple[str, str]] = Counter()
        for entry in self.entries.values():
            found[entry.kind, entry.outcome or "lost"] += entry.requests
        return found

    def unexpected(self) -> Counter[tuple[str, str]]:
        """Of these, what a request of the kind should not come to. Poison among the innocent is counted apart."""
        return Counter(
            {
                (kind, outcome): count
                for (kind, outcome), count in self.outcomes().items()
                if outcome not in EXPECTED[kind] and outcome not in {"lost", WAITING, "PoisonedRequest"}
            }
        )

    def innocent_poisoned(self) -> int:
        """Requests that were set aside although they harm nobody: killed three times by somebody else."""
        return sum(
            count
            for (kind, outcome), count in self.outcomes().items()
            if outcome == "PoisonedRequest" and outcome not in EXPECTED[kind]
        )

    def latencies(self, kinds: Iterable[str] = ("one",)) -> tuple[list[float], list[float]]:
        """Milliseconds from publish to answer, outside and inside faults, of the kinds that take no time themselves."""
        outside: list[float] = []
        inside: list[float] = []
        for entry in self.entries.values():
            if entry.kind in set(kinds) and entry.settled is not None:
                touched = any(
                    begin < entry.settled and entry.submitted < end for begin, end, _ in self._relevant(entry)
                )
                (inside if touched else outside).append(1000 * (entry.settled - entry.submitted))
        return outside, inside

    def _relevant(self, entry: Entry) -> Sequence[tuple[float, float, str]]:
        return [fault for fault in self.faults if fault[1] > entry.submitted]


def outcome_of(meta: dict[str, Any]) -> str:
    """What a stored result says, in a word."""
    if meta["status"] == states.SUCCESS:
        return ANSWERED
    result = meta["result"]
    return type(result).__name__ if isinstance(result, Exception) else str(meta["status"])


def is_silence(error: BaseException) -> bool:
    """Whether a wait ended because the server was away, which says nothing about the request."""
    return isinstance(error, BrokerUnavailable)
