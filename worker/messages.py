"""A message as a worker shows it: in events, logs and `celery inspect`, never with a state's text.

Our producers describe a message without its text. Of a message that another producer made, nothing is shown.
"""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request

from producer.request import SCHEMA_HEADER

NOT_SHOWN = "(not shown: from another producer)"


class PredictionMessage(Request):  # type: ignore[misc] # celery has no types
    """Celery's request for our two tasks."""

    def __init__(self, message: Any, **options: Any) -> None:
        """Read the message; hide its arguments unless a producer of ours described them."""
        super().__init__(message, **options)
        if SCHEMA_HEADER not in self.request_dict:
            self._argsrepr = self._kwargsrepr = NOT_SHOWN

    def info(self, safe: bool = True) -> dict[str, Any]:  # noqa: ARG002 - never the arguments themselves
        """What `celery inspect` shows."""
        shown: dict[str, Any] = super().info(safe=True)
        return shown
