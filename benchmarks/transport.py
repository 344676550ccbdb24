"""The queue's wire against kombu's own Redis transport with Celery's own result store, in one run.

What is lost when workers and the server are killed at random moments, and what a message costs. Speed is measured in
turns, stock and ours, and compared by the medians. `python -m benchmarks.transport [--json FILE] [--quick]`
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, arguments, at_least, at_most, report, told
from benchmarks.wire import Side, until
from benchmarks.wire_app import QUEUE

KINDS = ("stock", "ours")
MEGABYTE = 1_000_000
SETTLE_S = 3.0  # a worker that has started still says so, to others and to itself
TWENTY = [f"{QUEUE}{number}" for number in range(20)]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    rounds: int
    noops: int
    waiting: int
    huge: int
    alone: int
    idle_s: float
    tasks: int
    kills: int
    server_kills: tuple[int, ...]
    killed: tuple[str, ...] = KINDS


FULL = Size(
    rounds=5, noops=4000, waiting=100_000, huge=150, alone=400, idle_s=20.0, tasks=12_000, kills=30, server_kills=(0, 5)
)
QUICK = Size(
    rounds=1,
    noops=400,
    waiting=2000,
    huge=10,
    alone=20,
    idle_s=2.0,
    tasks=300,
    kills=1,
    server_kills=(1,),
    killed=("ours",),
)


# --- what is lost ---


def lost(side: Side, tasks: int, kills: int, server_kills: int) -> int:
    """Tasks without an answer after a worker of 8 threads was killed and restarted, and the server with it.

    A kill comes at a random moment of each stretch of the work, so that all of them meet a busy worker.
    """
    moments = random.Random(len(side.kind))
    ids = side.fill("nap", tasks, (0.01,))
    side.start(pool=8)
    for kill in range(kills):
        done = int(tasks * (kill + moments.random()) / (kills + 1))
        if not until(lambda done=done: side.client.dbsize() > done, 60):  # type: ignore[misc]  # keys are results, but for a few
            print(f"{side.kind}: the worker has stopped working:\n{side.log_end()}", file=sys.stderr)
            break
        time.sleep(moments.uniform(0, 0.02))
        side.kill()
        if server_kills and kill % (kills // server_kills) == 0:
            side.crash_server()
        side.start(pool=8)
    until(lambda: side.left() == 0, 120, every=0.2)
    missing = tasks - side.answered(ids)
    side.kill()
    return missing


def losses(home: Path, size: Size) -> list[Figure]:
    """Kills of workers, and of workers and the server."""
    figures = []
    for server_kills in size.server_kills:
        what = f"worker, {server_kills} of the server" if server_kills else "worker"
        for kind in size.killed:
            with Side(kind, home / f"kills{server_kills}", visibility_timeout=5, durable=bool(server_kills)) as side:
                missing = lost(side, size.tasks, size.kills, server_kills)
            name = f"lost of {size.tasks:,} tasks, {size.kills} kills of the {what}: {kind}"
            figures.append(at_most(name, missing, 0, "tasks") if kind == "ours" else told(name, missing, "tasks"))
    return figures


# --- what a message costs ---


@dataclass(frozen=True, slots=True)
class Cost:
    """Tasks a second, and milliseconds of the worker's processor time for each."""

    rate: float
    cpu_ms: float


def drain(side: Side, count: int, queues: Sequence[str] = (QUEUE,), stop_at: int = 0) -> Cost:
    """Start a worker on filled queues, and measure from its first twentieth on until `stop_at` are left."""
    side.start(queues=queues)
    begun = count - max(1, (count - stop_at) // 20)
    if not until(lambda: side.left(queues) < begun, 60, every=0.002):
        raise RuntimeError(f"the {side.kind} worker does not work:\n{side.log_end()}")
    at_first, started, cpu = side.left(queues), time.perf_counter(), side.cpu_seconds()
    if not until(lambda: side.left(queues) <= stop_at, 300, every=0.005):
        raise RuntimeError(f"the {side.kind} worker has stopped working:\n{side.log_end()}")
    done = at_first - side.left(queues)
    seconds, used = time.perf_counter() - started, side.cpu_seconds() - cpu
    side.kill()
    side.clear()
    return Cost(done / seconds, 1000 * used / done)


def in_turns(sides: Sequence[Side], rounds: int, measure: Callable[[Side], Cost]) -> dict[str, Cost]:
    """The medians of each side."""
    costs: dict[str, list[Cost]] = {side.kind: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            costs[side.kind].append(measure(side))
    return {
        kind: Cost(statistics.median(cost.rate for cost in some), statistics.median(cost.cpu_ms for cost in some))
        for kind, some in costs.items()
    }


def noops(sides: Sequence[Side], size: Size) -> list[Figure]:
    """No-op tasks on a filled queue, results on."""

    def measure(side: Side) -> Cost:
        side.fill("noop", size.noops)
        return drain(side, size.noops)

    cost = in_turns(sides, size.rounds, measure)
    stock, ours = cost["stock"], cost["ours"]
    return [
        told("no-op tasks, threads pool of 32: stock", stock.rate, "tasks/s"),
        told("no-op tasks, threads pool of 32: ours", ours.rate, "tasks/s"),
        at_least("no-op tasks a second, against stock", ours.rate / stock.rate, 1.6),
        told("CPU a message: stock", stock.cpu_ms, "ms"),
        at_most("CPU a message: ours", ours.cpu_ms, 1.2, "ms"),
        at_most("CPU a message, against stock", ours.cpu_ms / stock.cpu_ms, 0.6),
    ]


def shapes(sides: Sequence[Side], size: Size) -> list[Figure]:
    """Huge messages, many that wait, many queues."""

    def huge(side: Side) -> Cost:
        side.fill("noop", size.huge, ("x" * MEGABYTE,))
        return drain(side, size.huge)

    def waiting(side: Side) -> Cost:
        side.fill("noop", size.waiting)
        return drain(side, size.waiting, stop_at=size.waiting - size.noops)

    def twenty(side: Side) -> Cost:
        side.fill("noop", size.noops, queues=TWENTY)
        return drain(side, size.noops, TWENTY)

    figures = []
    for name, measure in (
        ("1 MB messages", huge),
        (f"with {size.waiting:,} waiting messages", waiting),
        ("20 queues", twenty),
    ):
        cost = in_turns(sides, max(1, size.rounds * 3 // 5), measure)
        figures.append(told(f"{name}: stock", cost["stock"].rate, "tasks/s"))
        figures.append(at_least(f"{name}, against stock", cost["ours"].rate / cost["stock"].rate, 1.0))
    return figures


# --- a worker at rest ---


def alone(sides: Sequence[Side], count: int) -> list[Figure]:
    """One task at a time, published and answered, the sides asked in turns."""
    taken: dict[str, list[float]] = {side.kind: [] for side in sides}
    for number in range(count + 5):
        for side in sides:
            started = time.perf_counter()
            side.app.tasks["noop"].delay().get(timeout=30)
            if number >= 5:  # the first connect and subscribe
                taken[side.kind].append(1000 * (time.perf_counter() - started))
    p50 = {kind: statistics.median(some) for kind, some in taken.items()}
    p99 = {kind: statistics.quantiles(some, n=100)[98] for kind, some in taken.items()}
    return [
        told("alone, p50: stock", p50["stock"], "ms"),
        told("alone, p50: ours", p50["ours"], "ms"),
        at_most("alone, p50, more than stock", p50["ours"] - p50["stock"], 0.3, "ms"),
        told("alone, p99: stock", p99["stock"], "ms"),
        told("alone, p99: ours", p99["ours"], "ms"),
    ]


def idle(sides: Sequence[Side], seconds: float) -> list[Figure]:
    """Commands that the servers run while nothing is to be done."""
    before = [side.client.info("stats")["total_commands_processed"] for side in sides]
    started = time.perf_counter()
    time.sleep(seconds)
    waited = time.perf_counter() - started
    after = [side.client.info("stats")["total_commands_processed"] for side in sides]
    rate = {side.kind: (late - early - 1) / waited for side, early, late in zip(sides, before, after, strict=True)}
    return [
        told("commands of an idle worker: stock", rate["stock"], "1/s"),
        at_most("commands of an idle worker: ours", rate["ours"], 3, "1/s"),
    ]


def at_rest(sides: Sequence[Side], size: Size) -> list[Figure]:
    """Workers as they are in production, with heartbeat and events: no task, then one task at a time."""
    for side in sides:
        side.start("-E", quiet=False)
        waiting = until(lambda side=side: any(one["cmd"] == "brpop" for one in side.client.client_list()), 60)  # type: ignore[misc]
        if not waiting:
            raise RuntimeError(f"the {side.kind} worker does not wait for messages:\n{side.log_end()}")
    time.sleep(SETTLE_S)
    figures = [*idle(sides, size.idle_s), *alone(sides, size.alone)]
    for side in sides:
        side.stop()
        side.clear()
    return figures


def main() -> int:
    """Measure, print and save."""
    options = arguments(__doc__).parse_args()
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="laya-transport-") as scratch:
        home = Path(scratch)
        with Side("stock", home) as stock, Side("ours", home) as ours:
            sides = (stock, ours)
            figures = [*noops(sides, size), *at_rest(sides, size), *shapes(sides, size)]
        figures += losses(home, size)
    load = os.getloadavg()[0]
    return report(f"The queue's wire against stock kombu and Celery (load {load:.1f})", figures, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
