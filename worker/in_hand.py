"""The messages that this process has in hand, copied out of sets that Celery's threads change at any moment.

Which of Celery's sets is meant, and what for, is the matter of whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def copied(requests: Iterable[Any]) -> list[Any]:
    """The requests of one of the sets of `celery.worker.state`, as they were at some moment of the call."""
    while True:
        try:
            return list(requests)
        except RuntimeError:  # a thread of the pool has begun or finished one meanwhile
            continue
