"""The data that travels between an Agent, the kinds of checkpoint and the batching of forward passes.

One row is one (state, question) pair, ready for the device. What a row's payload holds is known only to the
kind that made it; everything that schedules rows reads their cost in tokens and nothing else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from laya.questions import Question


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One (state, question) pair, tokenised.

    ``tokens`` is the number of attended tokens: what the row costs, and what rows are sorted and packed by.
    ``payload`` belongs to the kind that encoded the row.
    """

    question: Question
    tokens: int
    payload: Any


@dataclass(frozen=True, slots=True, eq=False)
class EncodedState:
    """The rows of one state, one for each question in order, and the complete ``usage`` of its result."""

    rows: tuple[Row, ...]
    usage: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowScores:
    """What a forward pass says of one row.

    ``logits`` has one entry for each option, in the order of the question's labels, in fp32 and before any
    temperature. ``act_probability`` is the probability of acting on the answer, in [0, 1].
    """

    logits: tuple[float, ...]
    act_probability: float


class Kind(Protocol):
    """A kind of checkpoint, loaded on a device: how it tokenises and what one forward pass computes."""

    @property
    def device(self) -> Any:
        """The torch device that holds the model."""

    @property
    def dtype(self) -> Any:
        """The torch dtype that a forward pass computes in."""

    @property
    def tokenizer(self) -> Any:
        """A transformers tokenizer for the caller's own use; changing it never changes a prediction."""

    @property
    def model(self) -> Any:
        """The module, with its encoder at ``model.encoder``."""

    def encode(self, state: object, questions: Sequence[Question], max_len: int, head_max_len: int) -> EncodedState:
        """Tokenise one state with its questions. Safe to call from many threads with different budgets.

        Raises:
            TypeError: the state is None or not JSON.
            ValueError: the options of a question do not fit; the message names it and the budgets to change.
        """

    def launch(self, rows: Sequence[Row]) -> Callable[[], list[RowScores]]:
        """Begin one pass over any mix of rows (states and questions may differ).

        Returns:
            What waits for the pass, once, and gives the score of each row, in order. Where the device computes beside
            the host, the pass is under way until then, and another may be launched behind it.
        """

    def forward(self, rows: Sequence[Row]) -> list[RowScores]:
        """Run one pass: launch it and wait for it."""
