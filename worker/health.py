"""A worker's pulse: what it writes down about itself every second, and how a probe reads it.

The pulse is a file in the run directory (`LAYA_RUN_DIR`), beside a lock that the worker holds while it lives, so that a
probe on the same machine needs neither the broker nor an answer from the worker's loop. A probe asks how long ago the
worker wrote, took and turned, not whether its process is there: a worker that lives and takes nothing is the worse one.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

STALE_S: Final = 10.0
"""Seconds after which a pulse that is written every second means: stopped, frozen, or without processor time."""

DEAF_S: Final = 15.0
"""Seconds without an answer from the broker, which is asked every second, that a worker with room may have."""

STARVED_S: Final = 20.0
"""Seconds for which the same message may be the oldest of a queue that a worker with room reads."""


CLOCK_S: Final = 2.0
"""Seconds by which two clocks may differ before it is worth a line in the log."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """A worker at one moment.

    Attributes:
        at: the moment, in Unix time.
        pid, node: whose it is.
        ready: whether it has a consumer: False while it starts and while the broker is away.
        turned: seconds since its event loop came by.
        answered: seconds since the broker answered its question for messages.
        taken: seconds since it was given a message, None if it never was.
        room: messages that it could start now.
        working: messages that it works on.
        oldest: seconds for which it has worked on the oldest of them, loads not counted; 0 without any.
        queues: those that it asked for last.
        hung: what it takes for hung, in words; it is about to end then.
        store_away: threads that have a result which the result store does not take.
    """

    at: float
    pid: int
    node: str
    ready: bool = False
    turned: float = 0.0
    answered: float = 0.0
    taken: float | None = None
    room: int = 0
    working: int = 0
    oldest: float = 0.0
    queues: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()
    store_away: int = 0


def problems(pulse: Pulse, now: float) -> list[str]:
    """What is wrong with a worker, in words; nothing if it is well. A broker that is away is not the worker's fault."""
    age = now - pulse.at
    if age > STALE_S:
        return [f"it has written no pulse for {age:.0f} s: stopped, frozen, or without processor time"]
    if age < -STALE_S:  # the next one would be right, so there was none
        return [f"its last pulse is of {-age:.0f} s from now: it has written none since the clock was set"]
    found = list(pulse.hung)
    if pulse.room > 0 and pulse.turned > STALE_S:
        found.append(f"its event loop has not come by for {pulse.turned:.0f} s")
    if pulse.ready and pulse.room > 0 and pulse.answered > DEAF_S:
        found.append(f"it has room and has not heard from the broker for {pulse.answered:.0f} s")
    return found


@dataclass(frozen=True, slots=True)
class Sight:
    """The oldest waiting message of each queue as a probe saw it: its tag, and when it was first seen there."""

    oldest: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    def updated(self, tags: Mapping[str, str], now: float) -> Sight:
        """What the next probe shall know, of the queues' present tags."""
        kept = {}
        for queue, tag in tags.items():
            before = self.oldest.get(queue)
            kept[queue] = before if before is not None and before[0] == tag else (tag, now)
        return Sight(kept)


def starved(pulse: Pulse, sight: Sight, now: float) -> list[str]:
    """The queues whose messages a worker leaves lying although it has room, in words."""
    if not pulse.ready or pulse.room <= 0:
        return []
    taken_at = pulse.at - pulse.taken if pulse.taken is not None else 0.0
    return [
        f"a message has been the oldest of {queue} for {now - since:.0f} s, and it took nothing meanwhile"
        for queue, (_, since) in sight.oldest.items()
        if queue in pulse.queues and now - since > STARVED_S and taken_at < since
    ]


def clock_note(ahead: float) -> str | None:
    """What to say about a clock that is so many seconds ahead of the broker's; None if that is no matter."""
    if abs(ahead) < CLOCK_S:
        return None
    direction, effect = ("ahead of", "too early") if ahead > 0 else ("behind", "too late")
    return (
        f"this machine's clock is {abs(ahead):.0f} s {direction} the broker's: if the backends' clocks agree with the "
        f"broker's, requests expire {effect} here; let all of them follow a time server"
    )


# --- the files ---


def run_directory(setting: str | None) -> Path:
    """Where pulses are kept: LAYA_RUN_DIR, or a directory of this user's that goes with the machine's next start."""
    if setting:
        return Path(setting)
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"laya-{os.getuid()}"


class PulseFile:
    """A worker's side: holds the lock, writes the pulse."""

    def __init__(self, directory: Path) -> None:
        """Take the lock of this process.

        Raises:
            OSError: the directory cannot be made, or is somebody else's.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = directory / f"worker-{os.getpid()}.json"
        self._lock = os.open(self._path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, pulse: Pulse) -> None:
        """Replace the pulse in one step."""
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(asdict(pulse)), encoding="utf-8")
        part.replace(self._path)

    def close(self) -> None:
        """Take the pulse away: this worker ends in order."""
        _remove(self._path)
        os.close(self._lock)


def read_pulses(directory: Path) -> list[Pulse]:
    """The pulses of the workers that live; those of dead ones are taken away."""
    found = []
    for lock in sorted(directory.glob("worker-*.lock")):
        path = lock.with_suffix(".json")
        if not _is_held(lock):
            _remove(path)
            continue
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            found.append(Pulse(**{**facts, "queues": tuple(facts["queues"]), "hung": tuple(facts["hung"])}))
        except (OSError, ValueError, TypeError, KeyError):
            # It has begun a moment ago, or is of another version: there is a worker, and nothing is known of it.
            pid = lock.stem.rpartition("-")[2]
            found.append(Pulse(_changed_at(lock), int(pid) if pid.isdigit() else 0, "a worker"))
    return found


def read_sight(directory: Path) -> Sight:
    """What the last probe saw; nothing if there was none."""
    try:
        stored: dict[str, Any] = json.loads((directory / "sight.json").read_text(encoding="utf-8"))
        return Sight({queue: (str(tag), float(since)) for queue, (tag, since) in stored.items()})
    except (OSError, ValueError, TypeError):
        return Sight()


def write_sight(directory: Path, sight: Sight) -> None:
    """Keep what this probe saw."""
    part = directory / f"sight-{os.getpid()}.part"
    part.write_text(json.dumps(dict(sight.oldest)), encoding="utf-8")
    part.replace(directory / "sight.json")


def _is_held(lock: Path) -> bool:
    try:
        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _remove(path: Path) -> None:
    for one in (path, path.with_suffix(".part"), path.with_suffix(".lock")):
        one.unlink(missing_ok=True)
