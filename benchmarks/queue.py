"""Requests through the queue to one worker: shared passes against one request at a time, and what our layer costs.

The device is simulated (5 ms a pass, 0.5 ms a row, at most 32 rows a pass); each request has four questions of its own.
`python -m benchmarks.queue [--json FILE] [--peer PYTHON] [--quick]`, where PYTHON is an interpreter whose environment
has celery, redis and the PyPI package `laya`: it is then given requests too, one `predict` a task.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.batching import CEILING, PASS_MS, QUESTIONS_A_REQUEST, ROW_MS, ROWS_A_PASS, schema
from benchmarks.figures import Figure, arguments, at_least, at_most, report, told
from benchmarks.workers import Bench
from laya.questions import parse_questions
from laya.simulated import SimulatedKind, write_checkpoint
from worker.server import EmbeddedServer

STATE = "a request of ordinary length, the same for all"


def tokens_a_row() -> int:
    """What one row of these requests counts, so that a budget of tokens is a number of rows."""
    return max(row.tokens for row in SimulatedKind().encode(STATE, parse_questions(schema(9999)), 512, 192).rows)


def rate_of_noops(bench: Bench, number: int) -> tuple[float, float]:
    """No-op tasks a second of the same worker, and CPU seconds a task."""
    with bench.worker("-c", "32") as process:
        queue = {"queue": "laya"}
        with bench.app.producer_or_acquire() as producer, producer.batch():
            for place in range(number):
                bench.app.send_task("benchmarks.noop", (place,), producer=producer, **queue)
        return bench.drain(process, number)


def rate_of_predictions(bench: Bench, number: int, rows_a_pass: int, per_message: int = 1) -> tuple[float, float]:
    """Messages a second with these requests, and CPU seconds a message."""
    budget = str(rows_a_pass * tokens_a_row())
    requests = [{"state": STATE, "questions": schema(place), "model": "english"} for place in range(number)]
    with bench.worker("-c", "32", LAYA_MAX_BATCH_TOKENS=budget, LAYA_PRELOAD="english") as process:
        if per_message == 1:
            bench.publish(
                [(bench.submit_prediction, (one["state"], one["questions"]), {"model": "english"}) for one in requests]
            )
            return bench.drain(process, number)
        chunks = [requests[start : start + per_message] for start in range(0, number, per_message)]
        bench.publish([(bench.submit_predictions, (chunk,), {}) for chunk in chunks])
        messages, cpu = bench.drain(process, len(chunks))
        return messages * per_message, cpu / per_message


def figures_of(bench: Bench, free: Bench, number: int) -> list[Figure]:
    """Every figure, each rate as the median of three runs taken in turn."""
    noops, shared, alone = [], [], []
    for _ in range(3):
        noops.append(rate_of_noops(bench, number * 2))
        shared.append(rate_of_predictions(bench, number, ROWS_A_PASS))
        alone.append(rate_of_predictions(bench, max(50, number // 4), QUESTIONS_A_REQUEST))
    noop = statistics.median(rate for rate, _ in noops)
    together = statistics.median(rate for rate, _ in shared)
    separate = statistics.median(rate for rate, _ in alone)
    ceiling = CEILING / QUESTIONS_A_REQUEST
    bulk, _ = rate_of_predictions(bench, number * 4, ROWS_A_PASS, per_message=64)
    _, cpu = rate_of_predictions(free, number, 256)
    _, cpu_noop = rate_of_noops(free, number)
    return [
        told("no-op tasks of the same worker", noop, "messages/s"),
        told("requests, one at a time (simulated device)", separate, "requests/s"),
        told("requests, shared passes (simulated device)", together, "requests/s"),
        at_least("shared against one at a time (simulated device)", together / separate, 3.0),
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
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter with celery and the PyPI package laya")
    options = parser.parse_args()
    number = 200 if options.quick else 1200
    with tempfile.TemporaryDirectory() as scratch, EmbeddedServer() as server, EmbeddedServer() as other:
        room = Path(scratch)
        costly = write_checkpoint(room / "simulated", pass_ms=PASS_MS, row_ms=ROW_MS)
        free = write_checkpoint(room / "free", pass_ms=0, row_ms=0)
        benches = (
            Bench(server, room, f"english={costly},multilingual={costly}"),
            Bench(other, room, f"english={free},multilingual={free}"),
        )
        figures = figures_of(benches[0], benches[1], number)
        if options.peer:
            from benchmarks.peer import peer_figures  # noqa: PLC0415  # only those who have the peer

            figures += peer_figures(room, options.peer, number=60 if options.quick else 300)
        for bench in benches:
            bench.close()
    return report("One worker, through the queue", figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
