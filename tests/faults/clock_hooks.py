"""A hook through which a test sets the clock of one worker, as an administrator or a time server would."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import threading
import time
from pathlib import Path

from celery.worker import request

from laya import BaseHook
from worker.clock import clock

REAL = time.time


def set_clock(journal: Path, pid: int, ahead: float) -> None:
    """Set a worker's clock so many seconds ahead of what is right."""
    part = journal.with_suffix(f".ahead-{pid}.part")
    part.write_text(str(ahead))
    part.replace(part.with_suffix(""))


def is_set(journal: Path, pid: int, ahead: float) -> bool:
    """Whether the worker has that time."""
    found = [line for line in journal.read_text().splitlines() if line.startswith(f"clock {pid} ")]
    return found[-1:] == [f"clock {pid} {ahead}"]


class Clock(BaseHook):
    """Follows what the file beside JOURNAL says that has this process's id in its name."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._journal = Path(os.environ["JOURNAL"])
        shown = self._shown

        class Moved(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> Moved:
                return cls.fromtimestamp(shown(), tz)

        vars(request)["datetime"] = Moved
        vars(clock)["_wall"] = shown
        for module in list(sys.modules.values()):
            for name, value in list(vars(module).items()):
                if value is REAL and module is not sys.modules[__name__]:
                    setattr(module, name, shown)
        threading.Thread(target=self._follow, daemon=True).start()

    def on_load(self, ctx: object) -> None:
        """Make it a hook."""

    def _shown(self) -> float:
        return REAL() + self._ahead

    def _follow(self) -> None:
        while True:
            time.sleep(0.02)
            with contextlib.suppress(FileNotFoundError):
                ahead = float(self._journal.with_suffix(f".ahead-{os.getpid()}").read_text())
                if ahead != self._ahead:
                    self._ahead = ahead
                    with self._journal.open("a") as journal:
                        journal.write(f"clock {os.getpid()} {ahead}\n")
