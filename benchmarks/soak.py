"""A deployment under load whose parts are killed again and again, and the ledger of every request.

    python -m benchmarks.soak --minutes 20 --json soak.json
    python -m benchmarks.soak --restarts 20
    python -m benchmarks.soak --memory 200000
    python -m benchmarks.soak --flower 200000

Two supervised workers serve three simulated checkpoints, of which each holds two, on a server that keeps a journal.
Requests come one by one and in bulk, with and without deadlines; some are invalid, some raise, hang or kill their
worker. Every few seconds something is killed at random, by a seed. The second form asks workers to end instead, one
after the other; the third sends requests through one worker and one producer without any fault, and compares their
memory before and after; the fourth does that with events at the dashboard.
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import redis
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, arguments, at_most, report, told
from benchmarks.soak_deployment import CHECKPOINTS, Deployment, until
from benchmarks.soak_flower import flower_memory
from benchmarks.soak_ledger import WAITING, Ledger
from benchmarks.soak_load import Load, Plan
from benchmarks.soak_memory import memory
from worker.announcements import lists_of

START_S: Final = 4.0
"""Seconds that a worker takes to start. A fault is felt so long, and for the visibility timeout besides."""

SETTLE_S: Final = 120.0
"""Seconds without a settled request after which, when there are no more faults, nothing more is waited for."""

SETTLE_AT_MOST_S: Final = 1800.0
"""Seconds for which a backlog is worked off at most: faults can leave one that is as old as the run."""


# --- faults ---


def faults_of(at: Deployment, moments: random.Random) -> dict[str, Callable[[], None]]:
    """What may happen, by name."""

    def some_worker() -> str:
        return moments.choice(at.crew.names)

    def kill_both() -> None:
        for name in at.crew.names:
            at.crew.signal(name, signal.SIGKILL)

    def restart(end: Callable[[], None]) -> None:
        end()
        time.sleep(moments.uniform(0, 2))
        at.server.start()

    def cut() -> None:
        for _ in range(3):
            at.proxy.cut()
            time.sleep(0.5)

    def silence() -> None:
        at.proxy.silence()
        time.sleep(moments.uniform(1, 6))
        at.proxy.forward()

    return {
        "a worker is killed": lambda: at.crew.signal(some_worker(), signal.SIGKILL),
        "both workers are killed": kill_both,
        "a worker is asked to end": lambda: at.crew.signal(some_worker(), signal.SIGTERM),
        "the server is killed": lambda: restart(at.server.kill),
        "the server is restarted": lambda: restart(at.server.stop),
        "connections are cut": cut,
        "the network goes silent": silence,
    }


def disturb(at: Deployment, ledger: Ledger, plan: Plan, seed: int, say: Callable[[str], None]) -> None:
    """Let faults happen until the time is over; each kind comes before one comes again."""
    moments = random.Random(seed)
    faults = faults_of(at, moments)
    ends = time.monotonic() + plan.seconds
    waiting: list[str] = []
    while (left := ends - time.monotonic()) > 0:
        time.sleep(min(left, moments.uniform(*plan.fault_every)))
        if time.monotonic() >= ends:
            return
        if not waiting:
            waiting = moments.sample(sorted(faults), len(faults))
        what = waiting.pop()
        started = time.monotonic()
        faults[what]()
        ledger.fault(what, started, time.monotonic() + plan.visibility + START_S)
        say(f"{plan.seconds - (ends - time.monotonic()):6.0f} s  {what}")


# --- the ledger's end ---


def read_store(at: Deployment, ledger: Ledger, ids: list[str]) -> None:
    """Settle, by what is stored, messages whose callers lost their wait; a stored outcome that differs is a second."""
    backend = at.app.backend
    for first in range(0, len(ids), 500):
        some = ids[first : first + 500]
        for task_id, stored in zip(some, at.client.mget([backend.get_key_for_task(one) for one in some]), strict=True):
            if stored is not None and (meta := backend.decode_result(stored))["status"] in {"SUCCESS", "FAILURE"}:
                ledger.settle(task_id, meta)


def settle(at: Deployment, ledger: Ledger) -> None:
    """Give the last requests their time, then compare what is stored with what was seen."""

    last, left = time.monotonic(), len(ledger.open())

    def all_settled() -> bool:
        nonlocal last, left
        read_store(at, ledger, ledger.open())
        if len(ledger.open()) < left:
            last, left = time.monotonic(), len(ledger.open())
        return not left or time.monotonic() - last > SETTLE_S

    until(all_settled, SETTLE_AT_MOST_S, "")
    until(lambda: at.client.hlen("unacked") == 0, 30, "")
    read_store(at, ledger, list(ledger.entries))
    ledger.wait(waiting(at.client))


def waiting(client: redis.Redis) -> set[str]:
    """Ids of the messages that stand in a queue, or on record as taken."""
    lists = [name for checkpoint in CHECKPOINTS for name in lists_of(checkpoint)]
    raws = [raw for name in lists for raw in client.lrange(name, 0, -1)]
    raws += [json.loads(record)[0] for record in client.hvals("unacked")]
    messages = [raw if isinstance(raw, dict) else json.loads(raw) for raw in raws]
    return {str(message["headers"]["id"]) for message in messages}


def quantile(values: list[float], share: float) -> float:
    """A quantile, or 0 of nothing."""
    return statistics.quantiles(values, n=100)[round(share * 100) - 1] if len(values) > 1 else sum(values)


def figures_of(at: Deployment, ledger: Ledger) -> list[Figure]:
    """What is claimed, and what is told."""
    outside, inside = ledger.latencies()
    lost, late = (
        sum(count for (_, outcome), count in ledger.outcomes().items() if outcome == word) for word in ("lost", WAITING)
    )
    # One that is asked to end while it starts has no handler yet, and holds nothing.
    wrong = sum(count for code, count in at.crew.ends.items() if code not in {0, 70, -signal.SIGKILL, -signal.SIGTERM})
    return [
        told("requests submitted", sum(entry.requests for entry in ledger.entries.values()), ""),
        told("faults", len(ledger.faults), ""),
        at_most("lost", lost, 0, ""),
        at_most("still waiting when nothing more was waited for", late, 0, ""),
        at_most("answered twice", len(ledger.changed), 0, ""),
        at_most("other outcomes than a request of the kind has", sum(ledger.unexpected().values()), 0, ""),
        told("set aside though harmless (killed three times by others)", ledger.innocent_poisoned(), ""),
        at_most("messages left unacknowledged", int(at.client.hlen("unacked")), 0, ""),
        at_most("workers that ended otherwise than by a kill, in order or as hung", wrong, 0, ""),
        told("one request, outside faults: p50", quantile(outside, 0.5), "ms"),
        told("one request, outside faults: p99", quantile(outside, 0.99), "ms"),
        told("one request, inside faults: p50", quantile(inside, 0.5), "ms"),
        told("one request, inside faults: p99", quantile(inside, 0.99), "ms"),
    ]


def show(at: Deployment, ledger: Ledger) -> None:
    """The ledger itself."""
    table = Table(title="Ledger", title_justify="left", header_style="bold")
    for column in ("kind", "became", "requests"):
        table.add_column(column, justify="right" if column == "requests" else "left")
    for (kind, outcome), count in sorted(ledger.outcomes().items()):
        table.add_row(kind, outcome, f"{count:,}")
    for name, count in sorted(ledger.refused.items()):
        table.add_row("(not submitted)", name, f"{count:,}")
    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(table)
    ends = ", ".join(f"{count} with {code}" for code, count in sorted(at.crew.ends.items()))
    console.print(f"workers that ended: {ends or 'none'}")
    for line in ledger.changed[:10]:
        console.print(f"[red]answered twice:[/] {line}")


def restart_in_order(at: Deployment, ledger: Ledger, times: int, say: Callable[[str], None]) -> None:
    """Ask one worker after the other to end, each when the one before has come back."""
    for number in range(times):
        name = at.crew.names[number % len(at.crew.names)]
        starts = at.crew.log(name).count(" ready.")
        time.sleep(0.5)  # of work between two restarts
        begun = time.monotonic()
        at.crew.signal(name, signal.SIGTERM)
        until(lambda name=name, starts=starts: at.crew.log(name).count(" ready.") > starts, 90, f"{name}'s return")  # type: ignore[misc]
        ledger.fault("a worker is asked to end", begun, time.monotonic())
        say(f"{number + 1:3} of {times}: {name} ended and is back after {time.monotonic() - begun:.1f} s")


def soak(home: Path, plan: Plan, seed: int, restarts: int = 0) -> list[Figure]:
    """Run the whole of it; with `restarts`, workers that are asked to end are all that happens."""
    ledger = Ledger()
    with Deployment(home, plan.visibility) as at:
        load = Load(at, ledger, plan, seed)
        load.start()
        say = partial(print, flush=True)
        if restarts:
            restart_in_order(at, ledger, restarts, say)
        else:
            disturb(at, ledger, plan, seed, say)
        load.stop()
        say("nothing more is sent")
        settle(at, ledger)
        show(at, ledger)
        return figures_of(at, ledger)


def main() -> int:
    """Measure, print and save."""
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long there is load and trouble (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="what happens when (default: 1)")
    parser.add_argument("--restarts", type=int, default=0, metavar="N", help="only ask workers to end, N times in all")
    parser.add_argument("--memory", type=int, metavar="N", help="send N requests without faults, and compare memory")
    parser.add_argument("--flower", type=int, metavar="N", help="send N events of tasks at Flower, and compare memory")
    parser.add_argument(
        "--flower-tasks", type=int, default=10_000, metavar="N", help="tasks that Flower keeps (default: 10,000)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and data in this directory")
    options = parser.parse_args()
    if options.memory:
        with tempfile.TemporaryDirectory(prefix="laya-memory-") as scratch:
            figures = memory(Path(scratch), options.memory)
        return report(f"{options.memory:,} requests through one worker and one producer", figures, options.json)
    if options.flower:
        with tempfile.TemporaryDirectory(prefix="laya-flower-") as scratch:
            figures = flower_memory(Path(scratch), options.flower, options.flower_tasks)
        return report(
            f"{options.flower:,} events at a Flower that keeps {options.flower_tasks:,} tasks", figures, options.json
        )
    quick = Plan(
        seconds=8.0, rate=15.0, bulk_rate=1.0, fault_every=(0.5, 1.5), poison_every=1000, hang_every=1000, visibility=2
    )
    plan = quick if options.quick else Plan(seconds=60 * options.minutes)
    if options.restarts:
        plan = replace(plan, poison_every=1e6, hang_every=1e6)
    with tempfile.TemporaryDirectory(prefix="laya-soak-") as scratch:
        home = options.keep or Path(scratch)
        home.mkdir(parents=True, exist_ok=True)
        figures = soak(home, plan, options.seed, options.restarts)
    what = f"{options.restarts} restarts" if options.restarts else f"{plan.seconds / 60:.1f} minutes"
    return report(f"Soak: {what}, seed {options.seed}", figures, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
