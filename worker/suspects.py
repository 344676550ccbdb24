"""Who may run beside whom, of messages that came back from workers which died: the decisions, without a worker.

When a worker dies, each message that it worked on is suspect: one may have killed it, and will kill again, or it was
killed from outside, and all are innocent. So suspects run beside nothing but suspects, a few at a time; what dies with
one of them again comes back in smaller company, and the last time that it may be begun it runs alone. Only that last
time convicts. `worker.quarantine` holds workers to it.

The sizes are those of group testing in s stages (C. H. Li, Journal of the American Statistical Association 57, 1962),
for one killer among `width` messages and s = `most` - 1: each stage divides the group by the s-th root of `width`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from producer.transport_message import OVERDUE, RETURNED

Verdict = Literal["start", "join", "wait", "back"]


def company(returns: int, most: int, width: int) -> int:
    """How many suspects a suspect may run among, itself included.

    Args:
        returns: how often it came back from a death; at least 1.
        most: how often a message is begun at most (`LAYA_MAX_DELIVERIES`).
        width: messages that a worker works on at once.

    Returns:
        `width` to the power of (most - 1 - returns) / (most - 1), rounded up; 1 the last time that it may be begun.
    """
    left = most - 1 - returns
    if left <= 0:
        return 1
    among = float(max(1, width) ** (left / (most - 1)))
    return max(1, math.ceil(round(among, 6)))  # 64 ** (1 / 3) is a little less than 4, others a little more


def verdict(*, among: int | None, beside: Sequence[int], neighbours: int, closed: bool, waiting: bool) -> Verdict:
    """What to do with a message that has arrived.

    Args:
        among: its `company` if it is suspect; None if it is not.
        beside: the same of each suspect that this process works on.
        neighbours: how many other messages this process works on.
        closed: something else has its turn when those suspects have finished.
        waiting: a suspect waits for the neighbours to finish.

    Returns:
        `start` it; let it `join` the suspects at work, or be the first; let it `wait` for its neighbours to finish; or
        give it `back` to the queue. A suspect never joins what is none, nor the other way round.
    """
    if among is None:
        return "back" if beside else "start"
    if waiting or (closed and beside):
        return "back"
    if neighbours:
        return "back" if beside else "wait"
    return "join" if len(beside) < min([among, *beside]) or not beside else "back"


def is_suspect(delivery_info: Mapping[str, Any] | None, headers: Mapping[str, Any] | None) -> bool:
    """Whether a message was delivered before to a worker that neither answered it nor gave it back."""
    return bool((delivery_info or {}).get("redelivered")) and not (headers or {}).get(RETURNED)


def returns_of(request: Any) -> int:
    """How often a suspect came back overdue: at least once, also where another wire has not counted it."""
    counted = request.request_dict.get(OVERDUE)
    return max(1, counted) if isinstance(counted, int) else 1
