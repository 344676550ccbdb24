"""The worker's own Celery app with one more task, which does nothing: what a message costs without our part of it."""

from __future__ import annotations

from worker.app import app

__all__ = ["app", "noop"]


@app.task(name="benchmarks.noop", shared=False)  # type: ignore[untyped-decorator]  # celery has no types
def noop(number: int) -> int:
    """Give the number back."""
    return number
