"""The service of a worker, for deadlines that hold although this machine's clock is wrong, or is set meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from producer.request import BatchItem, PredictionRequest
from worker.clock import clock
from worker.serving import Serving


class TimelyServing(Serving):
    """Takes deadlines in the time of those who ask."""

    def predict(self, request: PredictionRequest, deadline: float | None, tenant: str | None = None) -> dict[str, Any]:
        """Answer one request; see `Serving.predict`."""
        return super().predict(request, clock.local(deadline), tenant)

    def predict_many(
        self, items: Sequence[BatchItem], deadline: float | None, tenant: str | None = None
    ) -> list[dict[str, Any]]:
        """Answer checked requests; see `Serving.predict_many`."""
        return super().predict_many(items, clock.local(deadline), tenant)
