"""The object that hooks see: one call, from its first event to its last.

A context carries what a hook may read or rewrite and what the call produced. It decides nothing: the order of events is
`laya.lifecycle`'s, and who fires them are `laya.agent` and `laya.router`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from laya.phases import Phase

if TYPE_CHECKING:
    from laya.agent import Agent
    from laya.router import Router


_random = random.Random()  # noqa: S311 - no secret; seeded by the system, and by nobody's `random.seed`
os.register_at_fork(after_in_child=_random.seed)


def new_run_id() -> str:
    """32 hex digits that no other call has."""
    return f"{_random.getrandbits(128):032x}"


_call: ContextVar[str | None] = ContextVar("laya_call", default=None)


class one_call:  # noqa: N801 - used as a function is; a generator would take three times as long
    """Give the contexts that are made in this block one `call_id`, that of the call around it where there is one."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        """Begin the call, if none is under way."""
        self._token: Token[str | None] | None = _call.set(new_run_id()) if _call.get() is None else None

    def __exit__(self, *_: object) -> None:
        """End the call that began here."""
        if self._token is not None:
            _call.reset(self._token)


@dataclass(frozen=True, eq=False)
class Batch:
    """The requests of a Router's batch that go to one checkpoint, as the caller made them, in input order."""

    requests: tuple[Any, ...]


@dataclass(eq=False)
class PredictContext:
    """One call as its hooks see it; compared and hashed by identity.

    Attributes:
        states: what is asked about, one entry a state (exactly one under a Router). A start hook may assign a new list.
        questions: question id to definition. Assign a new mapping to change it: one mutated in place is the caller's.
        run_id: 32 hex digits, the same in every event of the call.
        results: one result a state once they exist, None before; set by the call itself or by `skip`.
        decision: where a Router sends the request; an `on_route` hook may replace it.
        model: the checkpoint's resolved name (Router) or source (Agent).
        agent: the Agent that answers; None before it is loaded and in `on_evict`.
        router: the Router that was called, None under a bare Agent.
        lang: the language that the call names, None where it names none. A start hook may assign another.
        max_len, head_max_len: token budgets of this call, None for the checkpoint's own.
        usage: `{"input_tokens", "output_tokens"}` summed over the results; None means that nothing was produced.
        started_at: `time.perf_counter()` just before `on_predict_start`.
        elapsed_ms: milliseconds from `started_at` to the end of the prediction.
        error: what the call failed with, None otherwise.
        skipped: whether a hook brought the results with `skip`.
        phases: what the call's parts took, in the order in which they ended; see `laya.phases`.
        batch: the requests that start before the first of them is inferred, in a Router's batch; else None.
        call_id: the same for the requests of a `batch`, and for the calls that hooks make inside a call.
    """

    states: list[Any]
    questions: Mapping[Any, Any]
    run_id: str = field(default_factory=new_run_id)
    results: list[dict[str, Any]] | None = None
    decision: Mapping[str, Any] | None = None
    model: str | None = None
    agent: Agent | Any | None = None
    router: Router | None = None
    lang: str | None = None
    max_len: int | None = None
    head_max_len: int | None = None
    usage: dict[str, int] | None = None
    started_at: float = field(default_factory=time.perf_counter)
    elapsed_ms: float | None = None
    error: BaseException | None = None
    phases: list[Phase] = field(default_factory=list)
    skipped: bool = False
    batch: Batch | None = None
    call_id: str | None = field(default_factory=_call.get)
    _listeners: list[Callable[[PredictContext, list[dict[str, Any]]], None]] = field(default_factory=list, repr=False)

    def when_computed(self, listener: Callable[[PredictContext, list[dict[str, Any]]], None]) -> None:
        """Call `listener(ctx, results)` once this call has computed its own results, before anybody changes them.

        That is before the gate, a Router's `routing` and every end hook; never for results of `skip` or of a failed
        call. The listener copies what it keeps, and raising fails the call.
        """
        self._listeners.append(listener)

    def deliver(self, results: list[dict[str, Any]]) -> None:
        """Take what the call has computed, and tell the listeners of `when_computed`. For whoever answers the call."""
        self.results = results
        for listener in self._listeners:
            listener(self, results)

    def skip(self, results: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Answer the call from these results: no tokenisation and no forward pass; `on_predict_end` still runs.

        Takes one result for the whole call (bare, or in a list) or one per state. The dicts are used as they are:
        the confidence gate and a Router's `routing` are written into them, so a cache hands out copies.

        Raises:
            ValueError: another number of results, or something that is not a result.
        """
        given = [results] if isinstance(results, Mapping) else results
        expected = f"one result for the whole call or one for each of its {len(self.states)} states"
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise ValueError(f"ctx.skip() takes {expected}, as dicts; got {type(results).__name__}")
        for entry in given:
            if not isinstance(entry, dict):
                raise ValueError(f"ctx.skip() takes {expected}, as dicts; one of them is {type(entry).__name__}")
        if len(given) not in {1, len(self.states)}:
            raise ValueError(f"ctx.skip() takes {expected}; got {len(given)}")
        self.skipped = True
        self.results = list(given)  # type: ignore[arg-type]  # every entry was just seen to be a dict
