"""What the lifecycle tests look through: a hook that writes every event down, and a kind that counts its work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from laya import PredictContext
from laya.rows import EncodedState, Row, RowScores

DEADLINE_S = 30
"""Seconds after which something that should have happened has not."""

STATE = "I was charged twice for my plan, please refund the second payment."

QUESTIONS: dict[str, Any] = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "money", "support": "the rest"}},
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
}

ANSWER: dict[str, Any] = {
    "model": "laya-rl-agent",
    "answers": {"team": {"type": "choice", "choice": "billing", "answer_confidence": 0.4}},
    "usage": {"input_tokens": 7, "output_tokens": 2},
}
"""A result as a cache would hand it out. Copy it: the gate and a Router write into results."""

ENDS = ["on_error", "on_predict_end"]


class Recorder:
    """A hook that writes down every event, in a list that several hooks may share, and what `look` sees in it."""

    def __init__(
        self,
        name: str = "",
        log: list[tuple[str, str]] | None = None,
        look: Callable[[PredictContext], Any] | None = None,
    ) -> None:
        self.name = name
        self.log = [] if log is None else log
        self.look = look
        self.contexts: list[tuple[str, PredictContext]] = []
        self.looks: list[tuple[str, Any]] = []

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.contexts]

    def seen(self, event: str) -> list[PredictContext]:
        return [ctx for each, ctx in self.contexts if each == event]

    def looked(self, event: str) -> list[Any]:
        return [found for each, found in self.looks if each == event]

    def _see(self, event: str, ctx: PredictContext) -> None:
        self.log.append((self.name, event))
        self.contexts.append((event, ctx))
        if self.look is not None:
            self.looks.append((event, self.look(ctx)))

    def on_route(self, ctx: PredictContext) -> None:
        self._see("on_route", ctx)

    def on_load(self, ctx: PredictContext) -> None:
        self._see("on_load", ctx)

    def on_evict(self, ctx: PredictContext) -> None:
        self._see("on_evict", ctx)

    def on_predict_start(self, ctx: PredictContext) -> None:
        self._see("on_predict_start", ctx)

    def on_error(self, ctx: PredictContext) -> None:
        self._see("on_error", ctx)

    def on_predict_end(self, ctx: PredictContext) -> None:
        self._see("on_predict_end", ctx)


class At:
    """A hook made of one function at one event."""

    def __init__(self, event: str, function: Callable[[PredictContext], Any]) -> None:
        setattr(self, event, function)


def raising(error: BaseException) -> Callable[[PredictContext], None]:
    """A hook method that raises this very error."""

    def method(ctx: PredictContext) -> None:
        raise error

    return method


class WatchedKind:
    """A checkpoint's real kind, with what it was asked written down, and a place to interrupt its passes."""

    def __init__(self, kind: Any, before_forward: Callable[[], None] | None = None) -> None:
        self._kind = kind
        self.before_forward = before_forward
        self.encoded: list[Any] = []
        self.passes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kind, name)

    def encode(self, state: object, questions: Sequence[Any], max_len: int, head_max_len: int) -> EncodedState:
        self.encoded.append(state)
        encoded: EncodedState = self._kind.encode(state, questions, max_len, head_max_len)
        return encoded

    def launch(self, rows: Sequence[Row]) -> Callable[[], list[RowScores]]:
        self.passes.append(len(rows))
        if self.before_forward is not None:
            self.before_forward()
        collect: Callable[[], list[RowScores]] = self._kind.launch(rows)
        return collect

    def forward(self, rows: Sequence[Row]) -> list[RowScores]:
        return self.launch(rows)()


def watch(agent: Any, before_forward: Callable[[], None] | None = None) -> WatchedKind:
    """Put a WatchedKind around the kind of this Agent, for as long as the Agent lives."""
    watched = WatchedKind(agent.checkpoint.kind, before_forward)
    agent.checkpoint = replace(agent.checkpoint, kind=watched)
    return watched


def assert_same(want: Any, got: Any, at: str = "") -> None:
    """Equal, but for floats that another shape of batch may round differently."""
    if isinstance(want, float):
        assert isinstance(got, float), at
        assert abs(want - got) <= 1e-3, at
    elif isinstance(want, dict):
        assert list(want) == list(got), at
        for key, value in want.items():
            assert_same(value, got[key], f"{at}.{key}")
    elif isinstance(want, list):
        assert len(want) == len(got), at
        for place, value in enumerate(want):
            assert_same(value, got[place], f"{at}[{place}]")
    else:
        assert want == got, at
