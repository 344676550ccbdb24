"""Which of Celery's pools a worker may run in, and why not the others.

A checkpoint lives in one process and is shared by its threads. A forked child has neither a working CUDA context
nor a share of the model; green threads would all wait for one forward pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from celery.concurrency import get_implementation, solo, thread

REFUSAL = (
    "the pool '{pool}' cannot serve checkpoints: CUDA does not survive a fork, and one process holds one model for "
    "all its threads. Start the worker with `-P threads` (the default here) or `-P solo`, and more worker processes "
    "for more throughput."
)


class PoolRefused(RuntimeError):
    """The worker was started with a pool that forks or patches threads."""


def asked_pool(command_line: Sequence[str]) -> type | None:
    """The pool that a command line asks for, or None.

    Celery takes a `-P prefork` for its own default, and runs the configured pool instead without a word.
    """
    asked = None
    for word, following in zip(command_line, [*command_line[1:], ""], strict=True):
        if word in {"-P", "--pool"}:
            asked = following
        elif word.startswith(("-P", "--pool=")):
            asked = word.removeprefix("--pool=").removeprefix("-P")
    try:
        return get_implementation(asked) if asked else None
    except (ImportError, AttributeError, ValueError):
        return None  # Celery has its own words for a pool that it does not know


def check_pool(pool: type) -> None:
    """Refuse every pool but threads and solo.

    Args:
        pool: the pool's class, as Celery resolved it.

    Raises:
        PoolRefused: with the reason and what to write instead.
    """
    if not (inspect.isclass(pool) and issubclass(pool, thread.TaskPool | solo.TaskPool)):
        name = getattr(pool, "__module__", str(pool)).rpartition(".")[2]
        raise PoolRefused(REFUSAL.format(pool=name))
