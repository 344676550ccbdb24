"""A simulated checkpoint: its passes take time and compute nothing, for benchmarks and for tests of scheduling.

A pass costs `pass_ms` + `row_ms` × rows + `token_ms` × padded tokens, one at a time on a device of its own; loading
costs `load_s`. The device computes beside the host and has a clock of its own, as a GPU has: a pass begins when it was
launched or when the one before it ends, whichever is later, and ends exactly its cost afterwards. A thread that wakes
late from waiting for it delays what it launches next, not what it had launched already. So all time that the device
stands idle is the host's doing, and counts.

Answers follow from state and question alone, so that a test sees a row that went astray. Whatever it answers names it
as simulated, and so must every figure that was measured with it.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from laya.questions import Question, check_state, state_text
from laya.rows import EncodedState, Row, RowScores

ARCHITECTURE: Final = "simulated"
"""The `architecture` of its `rl_agent_config.json`."""


class _Clock:
    """When a device is free: passes of all its checkpoints come one after the other."""

    def __init__(self) -> None:
        self._free_at = 0.0  # time.perf_counter()
        self._lock = threading.Lock()

    def take(self, seconds: float) -> float:
        """Queue a pass, and return when it ends."""
        with self._lock:
            self._free_at = max(time.perf_counter(), self._free_at) + seconds
            return self._free_at


_clocks: dict[str, _Clock] = {}
_clocks_lock = threading.Lock()


def write_checkpoint(
    directory: Path,
    *,
    pass_ms: float = 5.0,
    row_ms: float = 0.5,
    token_ms: float = 0.0,
    load_s: float = 0.0,
    device: str = "0",
) -> Path:
    """Write a simulated checkpoint, and return its directory.

    Args:
        directory: made if it is not there.
        pass_ms, row_ms, token_ms: milliseconds a pass, a row, a padded token.
        load_s: seconds that loading it takes.
        device: checkpoints of one device of a process compute one at a time.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architecture": ARCHITECTURE,
        "encoder": "simulated",
        "max_len": 512,
        "head_max_len": 192,
        "temperature": [1.0, 1.0, 1.0],
        "pass_ms": pass_ms,
        "row_ms": row_ms,
        "token_ms": token_ms,
        "load_s": load_s,
        "device": device,
    }
    (directory / "rl_agent_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return directory


class SimulatedKind:
    """A kind of checkpoint that takes its time and answers from a digest of state and question."""

    model: Any = None
    tokenizer: Any = None
    dtype = torch.float32

    def __init__(
        self,
        pass_ms: float = 5.0,
        row_ms: float = 0.5,
        token_ms: float = 0.0,
        device: str = "0",
    ) -> None:
        """Cost this much; see the module."""
        self.pass_ms, self.row_ms, self.token_ms = pass_ms, row_ms, token_ms
        self.device = torch.device("meta")  # torch's name for a device that computes nothing
        with _clocks_lock:
            self._clock = _clocks.setdefault(device, _Clock())

    def encode(self, state: object, questions: Sequence[Question], max_len: int, head_max_len: int) -> EncodedState:
        """One row a question; a token is four characters of state and question, at most `max_len` of them."""
        del head_max_len
        check_state(state)
        text = state_text(state)
        state_tokens = max(1, len(text) // 4)
        rows = []
        for question in questions:
            head = (len(question.instructions) + sum(map(len, question.options))) // 4
            digest = hashlib.sha256(f"{text}\0{question.instructions}\0{question.options}".encode())
            rows.append(Row(question, min(max_len, state_tokens + head + 2), digest.digest()))
        usage = {
            "input_tokens": sum(row.tokens for row in rows),
            "output_tokens": 0,
            "state_tokens": state_tokens,
            "state_tokens_dropped": 0,
            "truncated": False,
            "truncated_questions": [],
            "simulated": True,
        }
        return EncodedState(tuple(rows), usage)

    def forward(self, rows: Sequence[Row]) -> list[RowScores]:
        """Take the time that these rows cost, after the passes that were launched before."""
        return self.launch(rows)()

    def launch(self, rows: Sequence[Row]) -> Callable[[], list[RowScores]]:
        """Begin a pass; what is returned sleeps until it is over."""
        padded = len(rows) * max(row.tokens for row in rows)
        ends_at = self._clock.take((self.pass_ms + self.row_ms * len(rows) + self.token_ms * padded) / 1000)

        def scores() -> list[RowScores]:
            if (left := ends_at - time.perf_counter()) > 0:
                time.sleep(left)
            return [self._scores(row) for row in rows]

        return scores

    @staticmethod
    def _scores(row: Row) -> RowScores:
        digest: bytes = row.payload
        # The digest repeats for questions with more options than it has bytes; only equality matters here.
        return RowScores(tuple(digest[place % len(digest)] / 64 for place in range(row.question.k)), 0.0)


def load_kind(path: Path, config: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None) -> SimulatedKind:
    """Take as long as loading costs.

    Raises:
        ValueError: a cost that is not a number of at least 0; the message names it.
    """
    del device, dtype
    costs = {name: config.get(name, 0.0) for name in ("pass_ms", "row_ms", "token_ms", "load_s")}
    for name, value in costs.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ValueError(f"checkpoint {path}: {name} must be a number of at least 0, not {value!r}")
    time.sleep(costs.pop("load_s"))
    return SimulatedKind(**costs, device=str(config.get("device", "0")))
