"""Placement with real workers whose checkpoints are simulated: loads, waiting, a hot checkpoint, scaling, cost.

`python -m benchmarks.placement` runs every part; `--only NAME` one of them. Loading takes 3 s and an answer 10 ms of a
simulated device, one at a time, unless a part says otherwise. The library's own work for a request is real.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.figures import Figure, arguments, at_least, at_most, report, told
from benchmarks.workers import Bench, cpu_of, until
from laya.simulated import write_checkpoint
from worker.announcements import Fleet, read
from worker.placement import oldest_at_most
from worker.placement_view import Rules
from worker.server import EmbeddedServer

LOAD_S: Final = 3.0
ANSWER_MS: Final = 10.0
DWELL_S: Final = 10.0
RULES: Final = Rules(dwell_s=DWELL_S)
QUESTIONS: Final = {"yes": {"type": "noul", "instructions": "Is it so?"}}


@contextmanager
def deployment(
    names: Sequence[str],
    workers: int,
    *,
    app: str = "worker",
    row_ms: float = ANSWER_MS,
    load_s: float = LOAD_S,
    threads: int = 32,
    **settings: str,
) -> Iterator[tuple[Bench, list[psutil.Process]]]:
    """A server and workers with room for one checkpoint each."""
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as home, ExitStack() as running:
        scratch = Path(home)
        made = {
            name: write_checkpoint(scratch / name, pass_ms=0, row_ms=row_ms, load_s=load_s, device=name)
            for name in names
        }
        bench = Bench(server, scratch, ",".join(f"{name}={path}" for name, path in made.items()), app)
        running.callback(bench.close)
        processes: list[psutil.Process] = []

        def start(number: int) -> None:
            chosen = {"LAYA_MAX_LOADED": "1", "LAYA_DWELL": str(DWELL_S), "OMP_NUM_THREADS": "1", **settings}
            processes.append(running.enter_context(bench.worker("-n", f"w{number}@%h", "-c", str(threads), **chosen)))

        starting = [threading.Thread(target=start, args=(number,)) for number in range(workers)]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()
        if len(processes) < workers:
            raise RuntimeError("a worker did not start")
        yield bench, processes


def look(bench: Bench, names: Sequence[str]) -> Fleet:
    """What the workers announce now."""
    return read(bench.client, "laya", names)


def holders(bench: Bench, names: Sequence[str]) -> dict[str, int]:
    """How many workers hold each."""
    return {queue.checkpoint: len(queue.holders) for queue in look(bench, names).queues}


def loads(bench: Bench) -> int:
    """Loads of all workers since their start."""
    said = bench.app.control.broadcast("resident", reply=True, timeout=2.0) or []
    return sum(sum(facts["loads"].values()) for answer in said for facts in answer.values())


def publish(bench: Bench, names: Sequence[str], queue: str | None = None) -> None:
    """Publish a request for each name, to its own queue or to one that all share."""
    with bench.app.producer_or_acquire() as producer, producer.batch():
        for name in names:
            options: dict[str, Any] = {"producer": producer} | ({"queue": queue} if queue else {})
            bench.submit_prediction.apply_async(("hi", QUESTIONS), {"model": name}, **options)


def mixed(quick: bool) -> list[Figure]:
    """Three checkpoints, three workers, requests in random order: by placement, and from one shared queue."""
    names, count = "abc", 1500 if quick else 3000
    order = random.Random(6).choices(names, k=count)
    with deployment(names, 3) as (bench, _):
        started = time.perf_counter()
        publish(bench, order)
        until(lambda: bench.waiting() == 0, "the answers")
        took, loaded = time.perf_counter() - started, loads(bench)
    with deployment(names, 3, app="benchmarks.shared_app") as (bench, _):
        # It takes minutes: its rate is measured on what it answers within a part of that.
        sample = 20.0 if quick else 60.0
        publish(bench, order, queue="laya")
        time.sleep(2 * LOAD_S)  # until it is under way
        before, started = bench.waiting(), time.perf_counter()
        until(lambda: bench.waiting() == 0 or time.perf_counter() - started > sample, "the sample")
        rate = (before - bench.waiting()) / (time.perf_counter() - started)
        bench.client.delete("laya")
    return [
        at_most(f"mixed: loads for {count} requests (simulated device)", loaded, 6, "loads"),
        told("mixed: done in", took, "s"),
        told(f"mixed: one shared queue, by its rate over {sample:.0f} s", count / rate, "s"),
        at_least("mixed: sooner than one shared queue", count / rate / took, 10),
    ]


def steady(quick: bool) -> list[Figure]:
    """Two workers with room for one of four checkpoints each, steady traffic to all."""
    names, seconds = "abcd", 60.0 if quick else 180.0
    with deployment(names, 2) as (bench, _):
        oldest, sent = 0.0, []
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            sent += [bench.submit_prediction.delay("hi", QUESTIONS, model=name) for name in names]
            oldest = max([oldest, *(queue.age for queue in look(bench, names).queues)])
            time.sleep(0.5)
        until(lambda: bench.waiting() == 0, "the last answers")
        took, loaded = time.monotonic() - started, loads(bench)
        answered = sum(result.successful() for result in sent)
        for result in sent:
            result.forget()
    bound = oldest_at_most(RULES, load_s=LOAD_S, checkpoints=4, workers=2, capacity=1)
    return [
        at_least("steady: requests answered (simulated device)", answered / len(sent), 1.0, ""),
        at_most("steady: oldest message; its bound is derived from loads, dwell and turns", oldest, bound, "s"),
        at_most("steady: loads; the bar is time / dwell x workers", loaded, took / DWELL_S * 2, "loads"),
    ]


def hot(quick: bool) -> list[Figure]:
    """Four workers, three checkpoints, one of them suddenly asked for a lot; then all three a little."""
    del quick
    names = "abc"
    with deployment(names, 4) as (bench, _):
        publish(bench, names)
        until(lambda: sum(holders(bench, names).values()) >= 3, "a load of each")
        time.sleep(DWELL_S + 1)
        started = time.perf_counter()
        publish(bench, "a" * 2500)
        until(lambda: holders(bench, names)["a"] == 4, "the spread", pause=0.1)
        spread = time.perf_counter() - started
        until(lambda: look(bench, "a").queues[0].depth == 0, "the end of the burst", pause=0.1)
        started = time.perf_counter()

        def shrunk() -> bool:
            publish(bench, names)
            held = holders(bench, names)
            return held["a"] <= 2 and held["b"] >= 1 and held["c"] >= 1

        until(shrunk, "the way back", pause=0.25)
        back = time.perf_counter() - started
        until(lambda: bench.waiting() == 0, "the last answers")
    return [
        at_most("hot: until all four serve it (simulated device)", spread / LOAD_S, 3, "load times"),
        at_most("hot: until it is back to its share", back / DWELL_S, 2, "dwell times"),
    ]


def scaling(quick: bool) -> list[Figure]:
    """Bulk messages, one simulated device a worker; then the same on a device that costs nothing."""
    size, messages = 32, 30 if quick else 100
    item = {"state": "hi", "questions": QUESTIONS, "model": "a"}
    rates, cpu = {}, {}
    for row_ms, counts in ((8.0, (1, 2, 4)), (0.0, (1, 2))):
        for workers in counts:
            # Enough messages, and few at a time, so that the last ones, which not every worker has, weigh little.
            number = messages * workers * (1 if row_ms else 4)
            with deployment("a", workers, row_ms=row_ms, load_s=0, threads=4, LAYA_PRELOAD="a") as (bench, processes):
                bench.publish([(bench.submit_predictions, ([item] * size,), {}) for _ in range(number)])
                before, started = sum(map(cpu_of, processes)), time.perf_counter()
                left = bench.waiting()
                until(lambda bench=bench: bench.waiting() == 0, "the answers", pause=0.02)  # type: ignore[misc]
                took = time.perf_counter() - started
                rates[row_ms, workers] = left * size / took
                cpu[row_ms, workers] = (sum(map(cpu_of, processes)) - before) / (left * size)
    one = rates[8.0, 1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return [
        told("scaling: requests a second, one worker (simulated device, 8 ms each)", one, "1/s"),
        at_least("scaling: two workers, of twice that", rates[8.0, 2] / one / 2, 0.9),
        at_least("scaling: four workers, of four times that", rates[8.0, 4] / one / 4, 0.9),
        told("scaling: CPU of a worker for a request in bulk", cpu[0.0, 1] * 1000, "ms"),
        told("scaling: a device that costs nothing, one worker", rates[0.0, 1], "1/s"),
        told(f"scaling: the same, two workers on {cores} cores shared with the server", rates[0.0, 2], "1/s"),
    ]


def cost(quick: bool) -> list[Figure]:
    """What two workers at rest ask of the server, a second and worker; what runs inside a script is told apart."""
    seconds = 10.0 if quick else 30.0
    with deployment("abc", 2, load_s=0) as (bench, _):
        publish(bench, "ab")
        until(lambda: bench.waiting() == 0, "the answers")
        time.sleep(3)
        asked = inside = 0
        with bench.client.monitor() as monitor:  # type: ignore[no-untyped-call]
            started = time.monotonic()
            while time.monotonic() - started < seconds:
                if monitor.connection.can_read(timeout=0.5):
                    line = monitor.next_command()
                    inside += line["client_type"] == "lua"
                    asked += line["client_type"] != "lua"
    return [
        at_most("cost: commands a second and worker at rest", asked / seconds / 2, 5, "1/s"),
        told("cost: commands inside their scripts", inside / seconds / 2, "1/s"),
    ]


PARTS: Final[dict[str, Callable[[bool], list[Figure]]]] = {
    "mixed": mixed,
    "steady": steady,
    "hot": hot,
    "scaling": scaling,
    "cost": cost,
}


def main() -> int:
    """Run the parts and report."""
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part alone; may be repeated")
    chosen = parser.parse_args()
    figures = []
    for name, part in PARTS.items():
        if not chosen.only or name in chosen.only:
            print(f"{name}: {(part.__doc__ or '').splitlines()[0]}", file=sys.stderr)
            figures += part(chosen.quick)
    return report("Placement", figures, chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
