"""The worker's Celery app without placement: one queue for all checkpoints, to compare with."""

from __future__ import annotations

from worker.app import app
from worker.placement_step import PlacementStep

__all__ = ["app"]

app.steps["worker"].discard(PlacementStep)
