"""What the skip cache costs and saves: hits, misses, Zipf traffic over two workers, a server that is out of order.

The device is simulated, everything else is real. `python -m benchmarks.cache [--json FILE] [--quick] [--only NAME]`,
where NAME is `hit`, `miss`, `queue`, `zipf`, `together`, `resident` or `sick`.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import redis
from kombu.utils.uuid import uuid

from benchmarks.figures import Figure, arguments, at_least, at_most, report, told
from benchmarks.workers import Bench, until
from hooks import LoadCount, SkipCache
from hooks.cache_settings import CacheSettings
from laya import Router
from laya.simulated import write_checkpoint
from producer.client import ask
from tests.faults.proxy import Proxy
from worker.server import EmbeddedServer

QUESTIONS: Final[dict[str, Any]] = {
    "team": {
        "type": "choice",
        "instructions": "Which team should answer?",
        "criteria": {"billing": "invoices and refunds", "support": "broken things", "sales": None},
    },
    "urgency": {"type": "score", "instructions": "How urgent is it?", "criteria": ["low", "mid", "high"]},
    "angry": {"type": "noul", "instructions": "The customer is angry."},
}
STATE: Final = "My parcel has not arrived, and nobody answers the phone. " * 4

BUDGET_MS: Final = 20.0
"""LAYA_CACHE_BUDGET_MS as it is by default."""

PATIENT_MS: Final = 2_000.0
"""A budget for parts in which the cache is well: another process that takes the machine for a moment is no miss."""

REQUEST_MS: Final = 20.0
"""Of the simulated device, for a request of the Zipf part: the device is what is short, not the queue."""

REPEATS: Final = 0.6

EQUAL: Final = 64
"""Requests at once: as many as two workers have threads."""

LISTS: Final = 8
"""Equal messages at once, of as many requests each."""


IN_MEMORY: Final = CacheSettings.model_fields["cache_local_bytes"].default
"""LAYA_CACHE_LOCAL_BYTES as it is by default; with 0 each hit comes from the server."""


class Place:
    """Servers and a directory that all parts share."""

    def __init__(self, room: Path, server: EmbeddedServer, quick: bool) -> None:
        """Work in `room` with this server as the cache's."""
        self.room, self.server, self.quick = room, server, quick
        self.client = redis.Redis.from_url(server.url)

    def checkpoint(self, name: str, pass_ms: float = 0.0, row_ms: float = 0.0) -> str:
        """A simulated checkpoint."""
        return str(write_checkpoint(self.room / name, pass_ms=pass_ms, row_ms=row_ms, device=name))

    def router(self, cache: SkipCache | None, pass_ms: float = 0.0, **options: Any) -> Router:
        """A Router as a worker has one, with `english` resident."""
        path = self.checkpoint(f"english-{pass_ms:g}", pass_ms)
        hooks = [] if cache is None else [cache]
        router = Router(models={"english": path}, default="english", defer_load=True, hooks=hooks, **options)
        router.load("english")
        return router

    def cache(self, url: str | None = None, budget_ms: float = PATIENT_MS, local_bytes: int = IN_MEMORY) -> SkipCache:
        """A cache on the server of this URL."""
        # A broker elsewhere, so that nothing is said about one server for both.
        settings = CacheSettings(
            broker_url="redis://127.0.0.1:1/0",
            cache_url=url or self.server.url,
            cache_budget_ms=budget_ms,
            cache_local_bytes=local_bytes,
        )
        return SkipCache(settings)


def in_turns(rounds: int, *actions: Callable[[int], Any]) -> list[list[float]]:
    """Milliseconds of each action in each round, the actions taken in turn."""
    times: list[list[float]] = [[] for _ in actions]
    for number in range(rounds):
        for taken, action in zip(times, actions, strict=True):
            started = time.perf_counter()
            action(number)
            taken.append((time.perf_counter() - started) * 1000)
    return times


def p99(times: Sequence[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(times, n=100)[98]


def hits(place: Place) -> list[Figure]:
    """A hit in a worker against a bare GET of the same bytes, with one checkpoint resident.

    Taken in turn, so that both find the server as idle as a worker does that has other things to do: a loop of nothing
    but GETs keeps it awake, and takes half the time.
    """
    cache, remembering = place.cache(local_bytes=0), place.cache()
    router, near = place.router(cache), place.router(remembering)
    router.predict(STATE, QUESTIONS, model="english")
    cache.flush()
    (key,) = place.client.keys("laya.cache:*")
    size = place.client.strlen(key)
    hit, routed, remembered, get = in_turns(
        300 if place.quick else 5000,
        lambda _: router.predict(STATE, QUESTIONS, model="english"),
        lambda _: router.predict(STATE, QUESTIONS),
        lambda _: near.predict(STATE, QUESTIONS, model="english"),
        lambda _: place.client.get(key),
    )
    stats = cache.stats()
    cache.close()
    remembering.close()
    if (stats.misses, remembering.stats().misses) != (1, 0):
        raise RuntimeError(f"not all were hits: {stats}, {remembering.stats()}")
    bare = statistics.median(get)
    return [
        told(f"a bare GET of {size} bytes, p50", bare * 1000, "µs"),
        told("a hit from the server, p50", statistics.median(hit) * 1000, "µs"),
        told("a hit whose language is detected, p50", statistics.median(routed) * 1000, "µs"),
        told("a hit from the process' memory, p50", statistics.median(remembered) * 1000, "µs"),
        at_most("a hit from the server against a bare GET", statistics.median(hit) / bare, 2.0),
    ]


def misses(place: Place) -> list[Figure]:
    """What looking for an answer adds to computing it; each is looked for once, and written."""
    cache = place.cache()
    plain, cached = place.router(None), place.router(cache)
    without, with_ = in_turns(
        200 if place.quick else 2000,
        lambda number: plain.predict(f"{STATE} {number}", QUESTIONS, model="english"),
        lambda number: cached.predict(f"{STATE} {number}", QUESTIONS, model="english"),
    )
    cache.flush()
    cache.close()
    overhead = statistics.median(with_) - statistics.median(without)
    return [
        told("a prediction without a device, p50", statistics.median(without), "ms"),
        at_most("a miss on top of it, p50", overhead, 1.0, "ms"),
    ]


@contextmanager
def workers(place: Place, number: int, path: str, **settings: str) -> Iterator[Bench]:
    """A broker and workers that serve one checkpoint."""
    with EmbeddedServer() as broker, ExitStack() as running:
        bench = Bench(broker, place.room, f"english={path}")
        running.callback(bench.close)
        chosen = {"LAYA_PRELOAD": "english", "LAYA_CACHE_URL": place.server.url, "OMP_NUM_THREADS": "1", **settings}
        for at in range(number):
            running.enter_context(bench.worker("-c", "32", "-n", f"w{at}@%h", **chosen))
        yield bench


def through_the_queue(place: Place) -> list[Figure]:
    """A hit from the backend's side against a task that does nothing, for both places that a hit can come from.

    What is asked again within seconds comes from the process' memory, as a deployment has it by default; anything else,
    and everything without that memory, from the server.
    """
    beside_server, from_server = against_noops(place, 0)
    beside_memory, from_memory = against_noops(place, IN_MEMORY)
    p50 = statistics.median
    return [
        told("a no-op task through the queue, p50", p50([*beside_server, *beside_memory]), "ms"),
        at_most("a hit from the server on top of it, p50", p50(from_server) - p50(beside_server), 1.0, "ms"),
        at_most("a hit from the process' memory on top of it, p50", p50(from_memory) - p50(beside_memory), 1.0, "ms"),
    ]


def against_noops(place: Place, local_bytes: int) -> list[list[float]]:
    """Milliseconds of tasks that do nothing and of hits, taken in turn, one at a time."""
    settings = {
        "LAYA_CACHE_BUDGET_MS": f"{PATIENT_MS:g}",
        "LAYA_CACHE_LOCAL_BYTES": str(local_bytes),
        "LAYA_HOOKS": "hooks.SkipCache",
    }
    with workers(place, 1, place.checkpoint("queue"), **settings) as bench:
        watch = bench.app.backend.watch

        def noop(number: int) -> None:
            task_id = uuid()
            future = watch.expect(task_id, 30)
            bench.app.send_task("benchmarks.noop", (number,), task_id=task_id, queue="laya.english")
            future.result(30)

        def hit(_: int) -> None:
            ask(bench.submit_prediction, STATE, QUESTIONS, 30, {"model": "english"})

        for _ in range(20):
            noop(0)
            hit(0)
        return in_turns(100 if place.quick else 1000, noop, hit)


def zipf_traffic(requests: int, seed: int = 7) -> list[int]:
    """Numbers of states: each at least once, the repeats by Zipf's law, in a random order."""
    chance = random.Random(seed)
    distinct = round(requests * (1 - REPEATS))
    weights = [1 / rank for rank in range(1, distinct + 1)]
    traffic = [*range(distinct), *chance.choices(range(distinct), weights, k=requests - distinct)]
    chance.shuffle(traffic)
    return traffic


def rate(bench: Bench, traffic: Sequence[int]) -> float:
    """Requests a second, from the first one published to the last one settled."""
    started = time.perf_counter()
    bench.publish([(bench.submit_prediction, (f"{STATE} {number}", QUESTIONS), {}) for number in traffic])
    until(lambda: bench.waiting() == 0, "the queues to run empty", pause=0.02)
    return len(traffic) / (time.perf_counter() - started)


def zipf(place: Place) -> list[Figure]:
    """The same traffic with and without the cache; without it each request is computed."""
    traffic = zipf_traffic(200 if place.quick else 1000)
    path = place.checkpoint("zipf", row_ms=REQUEST_MS / len(QUESTIONS))
    rates: dict[str, float] = {}
    computed: dict[str, int] = {}
    for hooks in ("benchmarks.cache_hooks.Computed", "hooks.SkipCache,benchmarks.cache_hooks.Computed"):
        counter = place.room / f"computed-{len(rates)}"
        settings = {"LAYA_HOOKS": hooks, "BENCH_COMPUTED": str(counter), "LAYA_CACHE_BUDGET_MS": f"{PATIENT_MS:g}"}
        with workers(place, 2, path, **settings) as bench:
            rates[hooks] = rate(bench, traffic)
        computed[hooks] = counter.stat().st_size
    (without, with_), (_, forwards) = rates.values(), computed.values()
    return [
        told("two workers without the cache (simulated device)", without, "requests/s"),
        told("two workers with the cache (simulated device)", with_, "requests/s"),
        at_least(f"with {REPEATS:.0%} repeats, against without the cache", with_ / without, 2.0),
        at_most("forwards beyond one for each distinct request", forwards - len(set(traffic)), 0, "forwards"),
    ]


def together(place: Place) -> list[Figure]:
    """Equal requests at once, taken by two workers that have never seen them."""
    counter = place.room / "computed-together"
    settings = {
        "LAYA_HOOKS": "hooks.SkipCache,benchmarks.cache_hooks.Computed",
        "BENCH_COMPUTED": str(counter),
        "LAYA_CACHE_BUDGET_MS": f"{PATIENT_MS:g}",
    }
    requests = [{"state": f"listed {number}", "questions": QUESTIONS} for number in range(LISTS)]
    with workers(place, 2, place.checkpoint("together", pass_ms=100.0), **settings) as bench:
        rate(bench, [0] * EQUAL)
        alone = counter.stat().st_size
        bench.publish([(bench.submit_predictions, (requests,), {})] * LISTS)
        until(lambda: bench.waiting() == 0, "the queues to run empty", pause=0.02)
    listed = counter.stat().st_size - alone
    return [
        at_most(f"forwards of {EQUAL} equal requests at once, two workers", alone, 1, "forwards"),
        at_most(f"forwards of {LISTS} equal lists of {LISTS} requests at once, two workers", listed, LISTS, "forwards"),
    ]


def resident(place: Place) -> list[Figure]:
    """Hits for a checkpoint that had to go for another."""
    cache, loads = place.cache(), LoadCount()
    path = {name: place.checkpoint(f"{name}-alone") for name in ("english", "multilingual")}
    router = Router(models=path, defer_load=True, max_loaded=1, hooks=[cache, loads])
    evictions: list[str] = []
    for name in path:
        router.predict(STATE, QUESTIONS, model=name)
    cache.flush()
    before = loads.by_name()
    router.add_hook(_Evictions(evictions))
    (times,) = in_turns(100 if place.quick else 1000, lambda _: router.predict(STATE, QUESTIONS, model="english"))
    changes = sum(loads.by_name().values()) - sum(before.values()) + len(evictions)
    hit = cache.stats().hits
    cache.close()
    if hit != len(times):
        raise RuntimeError(f"{hit} hits of {len(times)}")
    return [
        told("a hit for a checkpoint that is not resident, p50", statistics.median(times) * 1000, "µs"),
        at_most("loads and evictions by these hits", changes, 0, "changes"),
    ]


class _Evictions:
    def __init__(self, names: list[str]) -> None:
        self._names = names

    def on_evict(self, ctx: Any) -> None:
        self._names.append(ctx.model)


def sick(place: Place) -> list[Figure]:
    """Predictions of 5 ms while the cache's server is slower than the budget, silent, or away."""
    with EmbeddedServer() as server, Proxy(server.port or 0) as proxy:
        troubles: dict[str, Callable[[], None]] = {
            "slow": lambda: proxy.slow(2 * BUDGET_MS / 1000),
            "silent": proxy.silence,
            "stopped": lambda: os.kill(server.pid, signal.SIGSTOP),
            "away": server.stop,
        }
        figures = []
        for name, trouble in troubles.items():
            figures += while_sick(place, proxy, name, trouble)
            proxy.forward()
            if name == "stopped":
                os.kill(server.pid, signal.SIGCONT)
    return figures


def while_sick(place: Place, proxy: Proxy, name: str, trouble: Callable[[], None]) -> list[Figure]:
    """The same predictions with and without a cache behind the proxy, which is well until the trouble begins."""
    cache = place.cache(proxy.url, BUDGET_MS)
    plain, cached = place.router(None, pass_ms=5.0), place.router(cache, pass_ms=5.0)
    cached.predict(STATE, QUESTIONS, model="english")
    trouble()
    without, with_ = in_turns(
        200 if place.quick else 1000,
        lambda number: plain.predict(f"{STATE} {number}", QUESTIONS, model="english"),
        lambda number: cached.predict(f"{STATE} {number}", QUESTIONS, model="english"),
    )
    cache.close()
    more = statistics.median(with_) - statistics.median(without)
    return [
        told(f"p50 more while the cache is {name}", more, "ms"),
        at_most(f"p99 more while the cache is {name}", p99(with_) - p99(without), BUDGET_MS, "ms"),
    ]


PARTS: Final[dict[str, Callable[[Place], list[Figure]]]] = {
    "hit": hits,
    "miss": misses,
    "queue": through_the_queue,
    "zipf": zipf,
    "together": together,
    "resident": resident,
    "sick": sick,
}


def main() -> int:
    """Measure, print, save."""
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=PARTS, metavar="NAME", help=f"one part: {', '.join(PARTS)}")
    options = parser.parse_args()
    figures: list[Figure] = []
    for name in [options.only] if options.only else PARTS:
        # Each part has a cache of its own, so that none finds another's answers.
        with tempfile.TemporaryDirectory() as scratch, EmbeddedServer() as server:
            figures += PARTS[name](Place(Path(scratch), server, options.quick))
    return report("The skip cache", figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
