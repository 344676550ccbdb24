"""An audit log: one line of JSON a request, for those who must be able to say later what was answered, and why.

Says which checkpoint answered what with which confidence, and never what was asked about: a state is named by a keyed
digest, unless its text is asked for. The file is rotated by the system; a new file of the same name is opened at once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import logging.handlers
import secrets
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from hooks.scope import current
from laya import BaseHook, PredictContext

_KEPT: Final = ("type", "choice", "score", "noul", "confidence", "answer_confidence", "abstention")


class AuditSettings(BaseSettings):
    """What the audit log reads from the environment."""

    model_config = SettingsConfigDict(
        env_prefix="LAYA_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    audit_file: str = Field("-", description="File of the audit log, appended to; `-` is standard output.")
    audit_key: SecretStr | None = Field(
        None,
        description="Key of the digests that stand for states in the audit log. The same key gives equal states equal "
        "digests on all workers; unset, each process makes up its own.",
    )
    audit_states: bool = Field(default=False, description="Write states in clear into the audit log.")


class AuditLog(BaseHook):
    """Writes a line for each request that ended, answered or not. Safe to use from many threads.

    A log that cannot be written warns and takes no answer away; set `raise_errors = True` on a subclass where an answer
    that was not logged must not leave.
    """

    raise_errors: bool | None = False

    def __init__(self, settings: AuditSettings | None = None) -> None:
        """Open the log that the settings name, those of the environment by default.

        Raises:
            OSError: the file cannot be opened.
        """
        self.settings = settings or AuditSettings()
        key = self.settings.audit_key
        self._key = key.get_secret_value().encode() if key is not None else secrets.token_bytes(32)
        self._lines = _handler(self.settings.audit_file)

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        self._lines.close()

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Write the request's line."""
        line = json.dumps(self.record(ctx), ensure_ascii=False, default=str)
        entry = logging.LogRecord("laya.audit", logging.INFO, "", 0, line, None, None)
        self._lines.acquire()
        try:
            self._lines.emit(entry)
        finally:
            self._lines.release()

    def record(self, ctx: PredictContext) -> dict[str, Any]:
        """The line of a request.

        Returns:
            `time` (UTC), `run_id`, `task_id`, `checkpoint`, `identity`, `states` (a digest each), `questions` (ids),
            `answers` (id to answer, confidence and abstention, one mapping a state), `hit`, `elapsed_ms`, `error`.
        """
        record = {
            "time": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds"),
            "run_id": ctx.run_id,
            "task_id": current().task_id,
            "tenant": current().namespace,
            "checkpoint": ctx.model,
            "identity": _identity(ctx),
            "states": [self.digest(state) for state in _listed(ctx.states)],
            "questions": [str(id_) for id_ in ctx.questions] if isinstance(ctx.questions, Mapping) else [],
            "answers": [_answers(result) for result in ctx.results or ()],
            "hit": ctx.skipped,
            "elapsed_ms": None if ctx.elapsed_ms is None else round(ctx.elapsed_ms, 1),
            # An error's text can quote the request: its class says what kind of end it was.
            "error": None if ctx.error is None else type(ctx.error).__name__,
        }
        if self.settings.audit_states:
            record["texts"] = _listed(ctx.states)
        return record

    def digest(self, state: Any) -> str:
        """32 hex digits that stand for a state: HMAC-SHA256 (RFC 2104) of its JSON under the log's key, cut."""
        text = json.dumps(state, ensure_ascii=False, default=repr)
        return hmac.new(self._key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]


class _Rotated(logging.handlers.WatchedFileHandler):
    """A file that is opened anew when the system has moved it away; failures reach the caller, not the screen."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's own name
        raise  # noqa: PLE0704 - called while the error is handled


class _Standard(logging.StreamHandler[Any]):
    """Standard output, with failures that reach the caller too."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - as above
        raise  # noqa: PLE0704 - as above


def _handler(file: str) -> logging.Handler:
    return _Standard(sys.stdout) if file == "-" else _Rotated(file, encoding="utf-8", errors="backslashreplace")


def _listed(states: Any) -> list[Any]:
    """The states of a call; a call that is about to be refused may hold anything."""
    return list(states) if isinstance(states, list | tuple) else [states]


def _identity(ctx: PredictContext) -> str | None:
    identity = getattr(ctx.agent, "identity", None)
    if identity is None and ctx.skipped and ctx.router is not None and ctx.model is not None:
        identity = ctx.router.identity(ctx.model)  # a hit needs no Agent
    return None if identity is None else identity.digest


def _answers(result: Any) -> dict[str, Any]:
    answers = result.get("answers") if isinstance(result, Mapping) else None
    if not isinstance(answers, Mapping):
        return {}
    return {str(id_): _answer(answer) for id_, answer in answers.items() if isinstance(answer, Mapping)}


def _answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in _KEPT if name in answer}
