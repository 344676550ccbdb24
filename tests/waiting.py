"""Waiting for what comes about in another thread or process: by a condition and a deadline, never by a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LOOK_EVERY_S = 0.02


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "the condition") -> Any:
    """The first true value of `condition`, asked often, until the deadline; it is asked once in any case."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about within {seconds:g} s")
        time.sleep(LOOK_EVERY_S)
    return value
