"""What the long run asks: requests of every kind, at a rate, and what their callers see of them.

Kinds that misbehave are told by their text; `benchmarks.soak_hooks` does in a worker what it says.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kombu.utils.uuid import uuid

from benchmarks.soak_deployment import CHECKPOINTS, Deployment
from benchmarks.soak_ledger import Ledger, is_silence
from producer.errors import LayaError

QUESTIONS: Final[dict[str, Any]] = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": None, "support": None}},
    "angry": {"type": "noul", "instructions": "The customer is angry."},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, how fast, and how often what happens; times in seconds, rates a second."""

    seconds: float
    rate: float = 20.0
    bulk_rate: float = 2.0
    fault_every: tuple[float, float] = (6.0, 16.0)
    poison_every: float = 150.0
    hang_every: float = 240.0
    visibility: int = 5


class Load:
    """Publishes requests of every kind from some threads, and writes down what their callers see."""

    def __init__(self, at: Deployment, ledger: Ledger, plan: Plan, seed: int) -> None:
        """Describe it; `start` begins."""
        self._at, self._ledger, self._plan = at, ledger, plan
        self._over = threading.Event()
        streams: list[tuple[Callable[[random.Random], None], float]] = [
            (self._single, plan.rate / 2),
            (self._single, plan.rate / 2),
            (self._bulk, plan.bulk_rate),
            (lambda moments: self._publish("die", "die", moments), 1 / plan.poison_every),
            (self._hang, 1 / plan.hang_every),
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(*stream, seed + number), daemon=True)
            for number, stream in enumerate(streams)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Publish no more."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, step: Callable[[random.Random], None], rate: float, seed: int) -> None:
        moments = random.Random(seed)
        while not self._over.wait(moments.expovariate(rate) if rate > 1 else moments.uniform(0.3, 0.7) / rate):
            step(moments)

    def _single(self, moments: random.Random) -> None:
        luck = moments.random()
        if luck < 0.05:
            self._publish("nap", f"nap {moments.uniform(0.05, 1.0):.2f}", moments)
        elif luck < 0.15:
            self._publish("deadline", f"nap {moments.uniform(0, 1.0):.2f}", moments, expires=moments.uniform(0.3, 3.0))
        elif luck < 0.18:
            self._publish("raise", "raise", moments)
        elif luck < 0.21:
            self._publish_unchecked()
        else:
            self._publish("one", f"ticket {moments.random()}", moments)

    def _hang(self, moments: random.Random) -> None:
        if moments.random() < 0.5:
            self._publish("hang", "hang", moments)
        else:
            self._publish("hang with a deadline", "hang", moments, expires=2.0)

    def _publish(self, kind: str, state: str, moments: random.Random, **options: Any) -> None:
        model = moments.choices(CHECKPOINTS, (6, 3, 1))[0]
        call = partial(self._at.one.apply_async, (state, QUESTIONS), {"model": model}, **options)
        self._send(kind, call)

    def _bulk(self, moments: random.Random) -> None:
        count = moments.randrange(4, 33)
        requests = [
            {"state": f"ticket {moments.random()}", "questions": QUESTIONS, "model": moments.choice(CHECKPOINTS)}
            for _ in range(count)
        ]
        self._send("many", partial(self._at.many.apply_async, (requests,)), count)

    def _publish_unchecked(self) -> None:
        """A request that another producer made, and that no backend of ours would have let through."""
        bad = {"q": {"type": "oracle", "instructions": "?"}}
        task, queue = self._at.one.name, f"laya.{CHECKPOINTS[0]}"
        self._send("invalid", partial(self._at.app.send_task, task, ("x", bad), queue=queue))

    def _send(self, kind: str, call: Callable[..., Any], requests: int = 1) -> None:
        task_id = uuid()
        self._ledger.submit(task_id, kind, requests)
        future = self._at.app.backend.watch.expect(task_id)
        try:
            call(task_id=task_id)
        except LayaError as error:
            future.cancel()
            self._ledger.refuse(task_id, error)
            return
        except Exception as error:  # noqa: BLE001 - send_task is Celery's own, with Celery's own errors
            future.cancel()
            self._ledger.refuse(task_id, error)
            return
        future.add_done_callback(partial(self._seen, task_id))

    def _seen(self, task_id: str, future: Any) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._ledger.settle(task_id, future.result())
        elif not is_silence(error):
            self._ledger.settle(task_id, {"status": "FAILURE", "result": error})
