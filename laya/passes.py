"""Which of the waiting rows go through the model together: a pure function of their lengths and ages.

A pass computes as many tokens as its longest row has, once for each row, so rows of like length belong together. The
oldest row is always in the next pass, so nothing starves. Threads and failures are `laya.batching`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LOOK_AHEAD: Final = 1024
"""Waiting rows that one choice looks at, oldest first: sorting more costs more than a better fit saves."""


MAX_TOKENS: Final = 16384
"""Padded tokens a pass: 32 rows of 512, which a small GPU holds with a large encoder."""

MAX_ROWS: Final = 256
"""Rows a pass: beyond it a pass gains nothing, and a failing one takes long to split."""

MAX_WASTE: Final = 0.15
"""Share of padding in a pass: more than this computed for nothing costs more than another pass."""


@dataclass(frozen=True, slots=True)
class PassLimits:
    """What one pass may hold.

    Attributes:
        tokens: padded tokens at most (rows × length of the longest); a single longer row goes alone.
        rows: rows at most.
        waste: share of the padded tokens that may be padding, in [0, 1).
    """

    tokens: int = MAX_TOKENS
    rows: int = MAX_ROWS
    waste: float = MAX_WASTE


def choose_pass(lengths: Sequence[int], limits: PassLimits) -> list[int]:
    """Positions of the rows of the next pass, shortest first.

    Args:
        lengths: tokens of each waiting row, oldest row first; not empty.

    Grows a window of rows sorted by length around the oldest one, each time by the neighbour that pads less, until
    neither neighbour fits the limits.
    """
    considered = min(len(lengths), LOOK_AHEAD)
    order = sorted(range(considered), key=lambda place: (lengths[place], place))
    low = high = order.index(0)
    total = lengths[0]
    while True:
        best: tuple[int, int, int, int] | None = None  # padded tokens, then the window and its sum
        for first, last, joins in ((low - 1, high, low - 1), (low, high + 1, high + 1)):
            if first < 0 or last >= considered:
                continue
            longest, count = lengths[order[last]], last - first + 1
            padded, real = longest * count, total + lengths[order[joins]]
            if count > limits.rows or padded > limits.tokens or padded - real > limits.waste * padded:
                continue
            waste = padded - real
            if best is None or waste < best[0]:
                best = (waste, first, last, real)
        if best is None:
            return order[low : high + 1]
        _, low, high, total = best
