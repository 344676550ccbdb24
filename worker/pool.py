"""Which of Celery's pools a worker may run in, and why not the others.

A checkpoint lives in one process and is shared by its threads. A forked child has neither a working CUDA context
nor a share of the model; green threads would all wait for one forward pass.
"""

from __future__ import annotations

import inspect

from celery.concurrency import solo, thread

REFUSAL = (
    "the pool '{pool}' cannot serve checkpoints: CUDA does not survive a fork, and one process holds one model for "
    "all its threads. Start the worker with `-P threads` (the default here) or `-P solo`, and more worker processes "
    "for more throughput."
)


class PoolRefused(RuntimeError):
    """The worker was started with a pool that forks or patches threads."""


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
