"""Waiting for what comes about in another thread or process: by a condition and a deadline, never by a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LOOK_EVERY_S = 0.02


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "the condition") -> Any:
    """The first true value of `condition`, asked often until the deadline, and once more after it.

    So a process that got no time until the deadline has not failed.
    """
    deadline = time.monotonic() + seconds
    while True:
        late = time.monotonic() > deadline
        if value := condition():
            return value
        assert not late, f"{what} did not come about within {seconds:g} s"
        time.sleep(LOOK_EVERY_S)
