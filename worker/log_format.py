"""How a line of a worker's log looks: for people on a terminal, JSON where a machine reads it.

What a line may say is decided elsewhere (`worker.logs`); here it is only written down.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from datetime import UTC, datetime
from typing import Any, Final, Literal

from celery import signals
from celery._state import get_current_task

Format = Literal["auto", "text", "json"]

_HOST: Final = socket.gethostname()


class JsonLines(logging.Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, `host`, `pid`, `thread`; where there is one,
    `task` and `task_id` of the task at hand, and `error`, the traceback as it may be shown."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "host": _HOST,
            "pid": record.process,
            "thread": record.threadName,
        }
        task = get_current_task()
        if task is not None and task.request.id:
            line |= {"task": task.name, "task_id": task.request.id}
        error = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else "")
        if error:
            line["error"] = error
        return json.dumps(line, ensure_ascii=False, default=str)


def install(wanted: Format) -> None:
    """Write JSON lines if they are wanted; with `auto`, on every handler that does not write to a terminal."""
    if wanted == "text":
        return

    def on_handlers(logger: logging.Logger, **_: Any) -> None:
        for handler in logger.handlers:
            if wanted == "json" or not _is_terminal(handler):
                handler.setFormatter(JsonLines())

    signals.after_setup_logger.connect(on_handlers, weak=False)
    signals.after_setup_task_logger.connect(on_handlers, weak=False)


def _is_terminal(handler: logging.Handler) -> bool:
    stream = getattr(handler, "stream", None)
    try:
        return stream is not None and os.isatty(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return False
