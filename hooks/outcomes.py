"""How a request ended, in one word: the same in metrics, traces and wherever else it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from laya import PredictContext


def outcome(ctx: PredictContext) -> str:
    """How a request ended.

    `answered`: computed; `hit`: a hook brought the results; `empty`: nothing was asked; `refused`: the library refused
    the request (`TypeError`, `ValueError`); `late`: its deadline passed; `failed`: anything else.
    """
    error: Any = ctx.error
    if error is not None:
        if isinstance(error, TimeoutError):
            return "late"
        return "refused" if type(error) in {TypeError, ValueError} else "failed"
    if ctx.skipped:
        return "hit"
    return "answered" if any(answers_of(ctx)) else "empty"


def answers_of(ctx: PredictContext) -> Iterator[Mapping[str, Any]]:
    """Every answer of a call; a hook may have brought results of any shape."""
    for result in ctx.results or ():
        answers = result.get("answers")
        for answer in answers.values() if isinstance(answers, Mapping) else ():
            if isinstance(answer, Mapping):
                yield answer
