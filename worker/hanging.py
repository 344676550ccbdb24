"""What is taken for hung: the decision, from a few figures of a worker. What follows is `worker.watchdog`'s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ANSWER_AFTER_S: Final = 1.0
"""Seconds after its deadline at which a request that is still worked on is answered with the error."""

OVERDUE_S: Final = 10.0
"""Seconds after its deadline at which a request that is still worked on has its worker taken for hung: whatever waits
for the device gives up at the deadline, so this one is in a hook or in the device."""

LOOP_S: Final = 60.0
"""Seconds that the event loop may be busy at least: it waits for a slow broker now and then."""


@dataclass(frozen=True, slots=True)
class AtWork:
    """One request that is being worked on.

    Attributes:
        id, tag: of its task, and of its message.
        seconds: for how long, time not counted in which a checkpoint was loaded or the result store was away.
        overdue: seconds since its deadline; negative before it, None without one.
    """

    id: str
    tag: str
    seconds: float
    overdue: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What is taken for hung: seconds on a request or a pass, and on a load."""

    request_s: float
    load_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ids of requests to answer with the deadline's error now; those that hang; and all that hangs, in words."""

    late: tuple[str, ...] = ()
    hanging: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def judge(at_work: Sequence[AtWork], loading_s: float, computing_s: float, turned_s: float, limits: Limits) -> Verdict:
    """Judge a worker at one moment.

    Args:
        at_work: what it works on.
        loading_s: seconds for which the oldest load that is under way has gone on, 0 without any.
        computing_s: the same for a forward pass.
        turned_s: seconds since its event loop came by.
        limits: what is too long.
    """
    late, hanging, reasons = [], [], []
    for one in at_work:
        overdue = one.overdue if one.overdue is not None else 0.0
        if overdue > ANSWER_AFTER_S:
            late.append(one.id)
        if one.seconds > limits.request_s:
            reasons.append(f"request {one.id} has been worked on for {one.seconds:.0f} s")
        elif not loading_s and min(overdue, one.seconds) > OVERDUE_S:
            reasons.append(f"request {one.id} is worked on {overdue:.0f} s after its time was up")
        else:
            continue
        hanging.append(one.id)
    for what, seconds, limit in (
        ("a checkpoint has been loading", loading_s, limits.load_s),
        ("a forward pass has gone on", computing_s, limits.request_s),
        ("the event loop has not come by", turned_s, max(limits.request_s, LOOP_S)),
    ):
        if seconds > limit:
            reasons.append(f"{what} for {seconds:.0f} s")
    return Verdict(tuple(late), tuple(hanging), tuple(reasons))
