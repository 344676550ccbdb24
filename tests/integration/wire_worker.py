"""Worker processes of `wire_app`, for tests that need a whole Celery worker on the wire."""

from __future__ import annotations

from pathlib import Path

from tests.celery_process import CeleryProcess


class WireWorker(CeleryProcess):
    """`celery -A tests.integration.wire_app worker` on the server at `url`."""

    def __init__(
        self, home: Path, url: str, *options: str, kind: str = "ours", name: str = "wire", **environment: str
    ) -> None:
        """Describe it; `kind` is `ours` or `stock`, and `options` are Celery's own."""
        settings = {"WIRE_URL": url, "WIRE_KIND": kind, **environment}
        super().__init__("tests.integration.wire_app", home / f"{name}.log", settings, "-P", "threads", *options)
