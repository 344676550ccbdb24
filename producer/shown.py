"""An answer as logs, events and Flower show it: what was decided, and nothing of the state.

A result carries a piece of the state where a part of it is in another language (`mixed_segment`), so its own repr must
not reach a log. The object here stands for the result until the result store writes it as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST: Final = 300
"""Characters shown of one answer: a line of a log, a cell of a table."""


class Shown:
    """A result with a repr that may be logged. kombu's JSON writes what `__json__` returns."""

    __slots__ = ("_result",)

    def __init__(self, result: Any) -> None:
        """Stand for a result: that of one request, or the list of a message with many."""
        self._result = result

    def __json__(self) -> Any:
        """The result itself."""
        return self._result

    def __repr__(self) -> str:
        """Ids and answers, the checkpoint, and the tokens; for many requests how many were answered and failed."""
        if isinstance(self._result, list):
            failed = sum(1 for one in self._result if isinstance(one, Mapping) and "error" in one)
            return f"{len(self._result) - failed} answered, {failed} failed"
        return _cut(_of_one(self._result))


def plain(value: Any) -> Any:
    """A value, or the result that stands behind it."""
    return value.__json__() if isinstance(value, Shown) else value


def _of_one(result: Any) -> str:
    if not isinstance(result, Mapping):
        return type(result).__name__
    answers, routing, usage = (_mapping(result.get(key)) for key in ("answers", "routing", "usage"))
    parts = [", ".join(f"{question}={_decision(answer)}" for question, answer in answers.items()) or "no questions"]
    if "model" in routing:
        parts.append(str(routing["model"]))
    if "input_tokens" in usage:
        parts.append(f"{usage['input_tokens']} tokens")
    return "; ".join(parts)


def _decision(answer: Any) -> str:
    given = _mapping(answer)
    kind = given.get("type")
    decided = given.get(kind) if isinstance(kind, str) else None
    confidence = given.get("answer_confidence")
    if kind != "choice":
        return str(decided)
    return f"{decided} ({confidence:.2f})" if isinstance(confidence, int | float) else str(decided)


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else text[: _MOST - 1] + "…"
