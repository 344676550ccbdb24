"""Shared forward passes against one request at a time.

In process, on a simulated device (5 ms a pass, 0.5 ms a row, at most 32 rows a pass) and on a real encoder of 384 × 6
layers with random weights on the CPU. `python -m benchmarks.batching [--json FILE] [--plot FILE] [--quick]`
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import laya
from benchmarks.encoders import WORDS, write_random_checkpoint
from benchmarks.figures import Figure, arguments, at_least, at_most, report, told
from laya.batching import Batching, PassReport
from laya.simulated import write_checkpoint

ROWS_A_PASS = 32
PASS_MS, ROW_MS = 5.0, 0.5
CEILING = ROWS_A_PASS / (PASS_MS + ROW_MS * ROWS_A_PASS) * 1000
"""Rows a second of the simulated device, when every pass is full: 1,524."""

QUESTIONS_A_REQUEST = 4

ALONE = 1 / (PASS_MS + ROW_MS * QUESTIONS_A_REQUEST) * 1000
"""Requests a second of the simulated device when each has a pass of its own: 143."""

MOST = CEILING / QUESTIONS_A_REQUEST / ALONE
"""How many times as many requests the simulated device can answer in full passes: 2.67."""


def schema(number: int) -> dict[str, Any]:
    """Four questions that no other request asks, of one length, so that passes of any of them are full."""
    return {
        f"q{number}-{place}": {
            "type": "choice",
            "instructions": f"Question {place} of request {number:04d}",
            "criteria": ["yes", "no", f"other {number:04d}"],
        }
        for place in range(QUESTIONS_A_REQUEST)
    }


def simulated(directory: Path, name: str, batching: Batching | None) -> laya.Router:
    """A Router whose only checkpoint computes on a simulated device of its own."""
    path = write_checkpoint(directory / name, pass_ms=PASS_MS, row_ms=ROW_MS, device=name)
    router = laya.Router(models={"english": str(path)}, default="english", agent_kwargs={"batching": batching})
    router.load("english")
    return router


def in_process(directory: Path, requests: int) -> list[Figure]:
    """64 threads, each request with its own questions."""
    router = simulated(directory, "shared", Batching(max_rows=ROWS_A_PASS))
    schemas = [schema(number) for number in range(requests)]

    def ask(number: int) -> None:
        router.predict(f"request {number:04d}", schemas[number], model="english")

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(ask, range(min(requests, 128))))  # threads started, code paths warm
        started = time.perf_counter()
        list(pool.map(ask, range(requests)))
        rows = requests * QUESTIONS_A_REQUEST / (time.perf_counter() - started)
    return [
        told("simulated device: ceiling", CEILING, "rows/s"),
        told("64 threads, own questions each, simulated device", rows, "rows/s"),
        at_least("share of the simulated device's ceiling", rows / CEILING, 0.85),
    ]


def bulk(directory: Path, requests: int) -> list[Figure]:
    """Batches of 64 requests through Router.predict_batch, 32 callers as in a worker's pool."""
    router = simulated(directory, "bulk", Batching(max_rows=ROWS_A_PASS))
    schemas = [schema(number) for number in range(64)]
    batches = max(8, requests // 64)

    def ask(batch: int) -> None:
        router.predict_batch(
            [
                {"state": f"request {batch:04d}-{place:02d}", "questions": schemas[place], "model": "english"}
                for place in range(64)
            ]
        )

    with ThreadPoolExecutor(32) as pool:
        started = time.perf_counter()
        list(pool.map(ask, range(batches)))
        rows = batches * 64 * QUESTIONS_A_REQUEST / (time.perf_counter() - started)
    return [at_least("bulk of 64, in process: share of the simulated device's ceiling", rows / CEILING, 0.95)]


def alone(directory: Path, rounds: int) -> list[Figure]:
    """One caller without load: what the hand-over to the device's thread costs."""
    shared = simulated(directory, "alone-shared", Batching(max_rows=ROWS_A_PASS))
    direct = simulated(directory, "alone-direct", None)
    questions = schema(0)
    times: dict[str, list[float]] = {"shared": [], "direct": []}
    for _ in range(rounds):
        for name, router in (("shared", shared), ("direct", direct)):
            started = time.perf_counter()
            router.predict("alone", questions, model="english")
            times[name].append(time.perf_counter() - started)
    ratio = statistics.median(times["shared"]) / statistics.median(times["direct"])
    return [at_most("alone, against a direct call (simulated device)", ratio, 1.10)]


def real_encoder(directory: Path, requests: int, rounds: int, dtype: str) -> list[Figure]:
    """Lengths of 20 to 300 tokens, 32 requests outstanding, two questions, against one at a time in fp32."""
    path = str(write_random_checkpoint(directory / "random", hidden=384, layers=6))
    rng = random.Random(7)
    states = [" ".join(rng.choices(WORDS, k=rng.randint(5, 280))) for _ in range(requests)]
    questions = {
        "team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "support", "sales"]},
        "refund": {"type": "noul", "instructions": "Does the writer want a refund?"},
    }
    reports: list[PassReport] = []
    batching = Batching(observe=reports.append)
    one_at_a_time = laya.Agent(path, device="cpu", dtype="fp32")
    shared = laya.Agent(path, device="cpu", dtype=dtype, batching=batching)
    for agent in (one_at_a_time, shared):
        agent.predict(states[0], questions)
    lock = threading.Lock()

    def alone_at_a_time(state: str) -> None:
        with lock:
            one_at_a_time.predict(state, questions)

    reports.clear()
    rates: dict[str, list[float]] = {"one": [], "shared": []}
    for _ in range(rounds):
        rates["one"].append(_rate(alone_at_a_time, states))
        rates["shared"].append(_rate(lambda state: shared.predict(state, questions), states))
    ratio = statistics.median(rates["shared"]) / statistics.median(rates["one"])
    computed = sum(one.padded for one in reports)
    waste = 1 - sum(one.tokens for one in reports) / computed
    limit = 1.0 if dtype == "fp32" else 1.5
    return [
        told(
            f"encoder of 384 x 6, CPU: one at a time, fp32 (for {dtype})", statistics.median(rates["one"]), "requests/s"
        ),
        at_least(f"the same shared in {dtype}, 32 outstanding", ratio, limit),
        at_most(f"padding in shared passes, {dtype}", waste, 0.15, "of computed tokens"),
    ]


def _rate(ask: Callable[[str], Any], states: Sequence[str]) -> float:
    with ThreadPoolExecutor(32) as pool:
        started = time.perf_counter()
        list(pool.map(ask, states))
        return len(states) / (time.perf_counter() - started)


def plot(path: Path, directory: Path, requests: int) -> None:
    """Draw rows a second over callers, shared and one at a time, as a PNG."""
    from benchmarks.plots import lines  # noqa: PLC0415  # matplotlib is for those who ask for a picture

    callers = (1, 2, 4, 8, 16, 32, 64)
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, batching in (("shared passes", Batching(max_rows=ROWS_A_PASS)), ("one at a time", None)):
        router = simulated(directory, f"plot-{name}", batching)
        curves[name] = []
        for number in callers:
            count = min(requests, 30 * number)
            schemas = [schema(place) for place in range(count)]

            def ask(place: int, router: laya.Router = router, schemas: list[dict[str, Any]] = schemas) -> None:
                router.predict(f"request {place}", schemas[place], model="english")

            with ThreadPoolExecutor(number) as pool:
                started = time.perf_counter()
                list(pool.map(ask, range(count)))
                curves[name].append((number, count * QUESTIONS_A_REQUEST / (time.perf_counter() - started)))
    lines(
        path,
        "Rows a second on a simulated device (5 ms a pass, 0.5 ms a row, 32 rows a pass)",
        "callers at a time, each with four questions of its own",
        "rows a second",
        curves,
        {"the device's ceiling": CEILING},
    )


def main() -> int:
    """Measure, print, save."""
    parser = arguments(__doc__)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write rows/s over callers as a PNG")
    options = parser.parse_args()
    requests = 150 if options.quick else 2000
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        figures = in_process(directory, requests)
        figures += bulk(directory, requests * 3)  # long enough for its start and end to count little
        figures += alone(directory, 20 if options.quick else 200)
        for dtype in ("fp32", "bf16"):
            figures += real_encoder(directory, 4 if options.quick else 64, 1 if options.quick else 3, dtype)
        if options.plot:
            plot(options.plot, directory, requests)
    return report("Shared forward passes", figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
