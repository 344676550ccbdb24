"""Placement in simulated time: a thousand workers, fifty checkpoints, and workers that die.

`python -m benchmarks.placement_sim [--json FILE] [--plot FILE] [--quick]`. The decision is `worker.placement`'s own,
beside least recently used on one shared queue and a fixed assignment, with the same messages and the same deaths. Half
way through, all checkpoints change their popularity. Everything is simulated: no figure here is of a real worker.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Figure, arguments, at_least, at_most, report, told
from benchmarks.fleet_policies import POLICIES
from benchmarks.fleet_sim import Outcome, Plan, windows
from worker.announcements import LIFETIME_S
from worker.placement import oldest_at_most
from worker.placement_view import Rules

PLACEMENT, SHARED, FIXED = POLICIES

FULL = Plan()
QUICK = Plan(workers=100, checkpoints=20, seconds=60.0, shift_at=30.0, life_s=600.0)

START_S = 15.0
"""Seconds at the start, when nothing is in memory, that the waits of most messages are taken without."""


def simulate(plan: Plan, seed: int) -> dict[str, Outcome]:
    """What comes of the same messages and deaths under each policy."""
    outcomes = {}
    for name, policy in POLICIES.items():
        started = time.perf_counter()
        outcomes[name] = policy(plan, seed).run()
        print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return outcomes


def longest_allowed(plan: Plan) -> float:
    """Seconds that no message may wait longer than: the bound of placement, from when a dead worker is forgotten."""
    rules = replace(Rules(), load_s=plan.load_s)
    bound = oldest_at_most(
        rules, load_s=plan.load_s, checkpoints=plan.checkpoints, workers=plan.workers, capacity=plan.capacity
    )
    return bound + LIFETIME_S


def figures(plan: Plan, outcomes: Mapping[str, Outcome]) -> list[Figure]:
    """The figures of each policy, and those that placement is held to."""
    found = []
    for name, outcome in outcomes.items():
        answered = len(outcome.waits)
        found += [
            told(f"{name}: messages answered", 100 * answered / (answered + len(outcome.waiting)), "%"),
            told(f"{name}: loads", outcome.loads, "loads"),
            told(f"{name}: loads a thousand messages", 1000 * outcome.loads / answered, "loads"),
            told(f"{name}: evictions", outcome.evictions, "evictions"),
            told(f"{name}: 50 % wait less than", outcome.share(0.5, START_S), "s"),
            told(f"{name}: 99 % wait less than", outcome.share(0.99, START_S), "s"),
            told(f"{name}: longest wait", outcome.longest, "s"),
        ]
    placed, shared, fixed = (outcomes[name] for name in (PLACEMENT, SHARED, FIXED))
    early = sum(dwell < Rules().dwell_s for dwell in placed.dwells)
    return [
        *found,
        at_most("placement: longest wait, against its bound", placed.longest, longest_allowed(plan), "s"),
        at_most("placement: evictions before the dwell time", early, 0, "evictions"),
        at_least("99 % wait, shared queue / placement", _ratio(shared, placed), 1.0),
        at_least("99 % wait, fixed assignment / placement", _ratio(fixed, placed), 1.0),
    ]


def plot(plan: Plan, outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Waits and loads over time, as a picture."""
    from benchmarks.plots import over_time  # noqa: PLC0415 - matplotlib, for those who asked

    width = plan.seconds / 48
    waits = {name: windows(outcome, plan, width) for name, outcome in outcomes.items()}
    loads = {
        name: [
            *[(at, float(number)) for number, at in enumerate(outcome.load_times, 1)][:: 1 + outcome.loads // 500],
            (plan.seconds, float(outcome.loads)),
        ]
        for name, outcome in outcomes.items()
    }
    over_time(
        path,
        f"Simulated: {plan.workers} workers, {plan.checkpoints} checkpoints, {plan.rate:,.0f} messages/s, "
        f"{len(outcomes)} policies",
        {"99 % wait less than (s)": waits, "loads so far": loads},
        {"popularities change": plan.shift_at},
    )


def _ratio(other: Outcome, placed: Outcome) -> float:
    return other.share(0.99, START_S) / max(placed.share(0.99, START_S), 0.001)


def main() -> int:
    """Simulate, print, and write what was asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw waits and loads over time as a PNG")
    parser.add_argument("--seed", type=int, default=1, help="of messages and deaths (1)")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    outcomes = simulate(plan, options.seed)
    deaths = next(iter(outcomes.values())).deaths
    title = (
        f"Placement, simulated: {plan.workers} workers x {plan.capacity}, {plan.checkpoints} checkpoints, "
        f"{plan.seconds:.0f} s, {deaths} deaths"
    )
    if options.plot:
        plot(plan, outcomes, options.plot)
    return report(title, figures(plan, outcomes), options.json)


if __name__ == "__main__":
    sys.exit(main())
