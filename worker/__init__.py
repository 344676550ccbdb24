"""What runs beside the checkpoints: the worker's Celery app, its serving of requests, an embedded server.

`celery -A worker worker` finds the app here; importing the package alone reads no settings and builds nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["celery"]


def __getattr__(name: str) -> Any:
    """Make the app when Celery's command line asks for it: it looks for `app`, then for `celery`."""
    if name == "celery":
        return import_module("worker.app").app
    raise AttributeError(f"module 'worker' has no attribute {name!r}")
