"""Requests through the queue to one worker: shared passes against one request at a time, and what our layer costs.

The device is simulated (5 ms a pass, 0.5 ms a row, at most 32 rows a pass); each request has four questions of its own.
`python -m benchmarks.queue [--json FILE] [--peer PYTHON] [--quick]`, where PYTHON is an interpreter whose environment
has celery, redis and the PyPI package `laya`: it is then given requests too, one `predict` a task.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from benchmarks.batching import CEILING, MOST, PASS_MS, QUESTIONS_A_REQUEST, ROW_MS, ROWS_A_PASS, schema
from benchmarks.figures import Figure, arguments, at_least, at_most, report, told
from benchmarks.workers import Bench
from laya.passes import MAX_ROWS
from laya.questions import parse_questions
from laya.simulated import SimulatedKind, write_checkpoint
from worker.server import EmbeddedServer

STATE = "a request of ordinary length, the same for all"


def tokens_a_row() -> int:
    """What one row of these requests counts, so that a budget of tokens is a number of rows."""
    return max(row.tokens for row in SimulatedKind().encode(STATE, parse_questions(schema(9999)), 512, 192).rows)


def rate_of_noops(bench: Bench, process: psutil.Process, number: int) -> tuple[float, float]:
    """No-op tasks a second of a worker, and CPU seconds a task."""
    with bench.filling(process), bench.app.producer_or_acquire() as producer, producer.batch():
        for place in range(number):
            bench.app.send_task("benchmarks.noop", (place,), producer=producer, queue="laya")
    return bench.drain(process, number)


def rate_of_predictions(
    bench: Bench, process: psutil.Process, number: int, per_message: int = 1
) -> tuple[float, float]:
    """Requests a second of a worker, and CPU seconds a request."""
    requests = [{"state": STATE, "questions": schema(place), "model": "english"} for place in range(number)]
    with bench.filling(process):
        if per_message == 1:
            bench.publish(
                [(bench.submit_prediction, (one["state"], one["questions"]), {"model": "english"}) for one in requests]
            )
        else:
            chunks = [requests[start : start + per_message] for start in range(0, number, per_message)]
            bench.publish([(bench.submit_predictions, (chunk,), {}) for chunk in chunks])
    return bench.drain(process, number)


def serving(bench: Bench, rows_a_pass: int) -> AbstractContextManager[psutil.Process]:
    """A worker whose passes hold so many of these rows."""
    return bench.worker("-c", "32", LAYA_MAX_BATCH_TOKENS=str(rows_a_pass * tokens_a_row()), LAYA_PRELOAD="english")


def figures_of(bench: Bench, free: Bench, number: int, rounds: int) -> list[Figure]:
    """Every figure; rates against each other are the medians of several rounds in turn."""
    noops, shared, alone, bulks = [], [], [], []
    for _ in range(rounds):
        with serving(bench, ROWS_A_PASS) as process:
            noops.append(rate_of_noops(bench, process, number * 2))
            shared.append(rate_of_predictions(bench, process, number))
            bulks.append(rate_of_predictions(bench, process, number * 4, per_message=64))
        with serving(bench, QUESTIONS_A_REQUEST) as process:
            alone.append(rate_of_predictions(bench, process, max(50, number // 4)))
    noop = statistics.median(rate for rate, _ in noops)
    together = statistics.median(rate for rate, _ in shared)
    separate = statistics.median(rate for rate, _ in alone)
    ceiling = CEILING / QUESTIONS_A_REQUEST
    bulk = statistics.median(rate for rate, _ in bulks)
    with serving(free, MAX_ROWS) as process:
        _, cpu = rate_of_predictions(free, process, number)
        _, cpu_noop = rate_of_noops(free, process, number)
    return [
        told("no-op tasks of the same worker", noop, "messages/s"),
        told("requests, one at a time (simulated device)", separate, "requests/s"),
        told("requests, shared passes (simulated device)", together, "requests/s"),
        at_least("shared against one at a time (simulated device)", together / separate, 3.0),
        told("the most that the simulated device allows of this", MOST, "x"),
        told("share of what the simulated device allows of this", together / separate / MOST, "x"),
        at_least(
            "shared against no-ops or the simulated device's ceiling, the lower", together / min(noop, ceiling), 0.80
        ),
        at_least("bulk of 64 against the simulated device's ceiling", bulk / ceiling, 0.95),
        told("CPU of a no-op task", cpu_noop * 1000, "ms"),
        at_most("CPU of our layer on top, without a forward", (cpu - cpu_noop) * 1000, 0.5, "ms"),
    ]


def main() -> int:
    """Measure, print, save."""
    parser = arguments(__doc__)
    parser.add_argument("--peer", type=Path, metavar="PYTHON", help="interpreter with celery and the PyPI package laya")
    options = parser.parse_args()
    number = 100 if options.quick else 1200
    with tempfile.TemporaryDirectory() as scratch, EmbeddedServer() as server, EmbeddedServer() as other:
        room = Path(scratch)
        costly = write_checkpoint(room / "simulated", pass_ms=PASS_MS, row_ms=ROW_MS)
        free = write_checkpoint(room / "free", pass_ms=0, row_ms=0)
        benches = (
            Bench(server, room, f"english={costly},multilingual={costly}"),
            Bench(other, room, f"english={free},multilingual={free}"),
        )
        figures = figures_of(benches[0], benches[1], number, rounds=1 if options.quick else 3)
        if options.peer:
            from benchmarks.peer import peer_figures  # noqa: PLC0415  # only those who have the peer

            figures += peer_figures(room, str(options.peer.absolute()), number=30 if options.quick else 300)
        for bench in benches:
            bench.close()
    return report("One worker, through the queue", figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
