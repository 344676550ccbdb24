"""The thread that keeps placement going: it tells and asks the others once a second, decides, and has the order obeyed.

What it decides is `worker.placement`'s matter, how it is told `worker.heartbeat`'s, how it is obeyed
`worker.queue_order`'s. When the server cannot be asked, the worker goes on as it was decided last, and after some
seconds reads all its queues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from celery.worker import state
from redis.exceptions import RedisError

from laya import BaseHook, PredictContext
from producer.checkpoints import queue_of
from worker import queue_order
from worker.announcements import LIFETIME_S, Heard, Told, WorkerEntry
from worker.clock import clock
from worker.heartbeat import Exchange
from worker.in_hand import copied
from worker.placement import decide
from worker.placement_view import Decision, Demand, Held, Rules, View
from worker.serving import Serving

logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
"""Seconds between two heartbeats of a worker at rest."""

PRESSED_S: Final = 0.25
"""Seconds between two while something is claimed or about to go; with many workers longer, up to a heartbeat."""

WORKERS_PRESSED: Final = 16
"""Workers that may all be pressed at once without the server noticing."""

SOONEST_S: Final = 0.05
"""Seconds between two in any case."""

RETRY_LOAD_S: Final = 30.0
"""Seconds for which a worker does not claim a checkpoint that it could not load."""

COMPLAIN_EVERY_S: Final = 60.0
"""Seconds between two lines of the log about a server that cannot be asked."""


@dataclass(slots=True)
class _Known:
    """What was told and heard last, and when (monotonic)."""

    heard: Heard | None = None
    at: float = 0.0
    told: dict[str, Told] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)


class Observer:
    """Placement of one worker process."""

    def __init__(
        self,
        serving: Serving,
        rules: Rules,
        entry: WorkerEntry,
        ask: Exchange,
        *,
        threads: int,
        queues: Collection[str],
    ) -> None:
        """Take the service, how to weigh, who this is, how to ask the server, the pool's size and the queues read."""
        self._serving, self._rules, self._entry, self._ask = serving, rules, entry, ask
        self._threads = threads
        self._serves = tuple(name for name in serving.settings.names if queue_of(name) in queues)
        self._known = _Known()
        self._decision = Decision(())
        self._last_work = time.monotonic()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="laya-placement", daemon=True)
        self._loaders: dict[str, threading.Thread] = {}
        self._complained_at = -COMPLAIN_EVERY_S

    def start(self) -> None:
        """Decide for the first time, then go on in a thread."""
        router = self._serving.router
        router.add_hook(_Changes(self._wake.set))
        router.goes_elsewhere, router.others_could = self.should_answer_elsewhere, self.others_could
        router.rank_by(self._ranks)
        queue_order.current.cold_room = self._cold_room
        self._turn()
        self._thread.start()

    def stop(self) -> None:
        """Take every announcement back and end. Does not wait: the thread may be waiting for a server that is gone."""
        self._stop.set()
        self._wake.set()

    def end(self) -> None:
        """Stop, and wait until the announcements are taken back; for a moment at most."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(2.0)

    @property
    def demand(self) -> Mapping[str, Demand]:
        """What waits, as it was heard last; empty while nothing was."""
        heard = self._known.heard
        return heard.demand if heard is not None else {}

    # --- the thread ---

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._pause())
            self._wake.clear()
            if self._stop.wait(SOONEST_S):
                break
            try:
                self._turn()
            except Exception:  # whatever it is, a worker without placement reads all its queues
                logger.exception("Placement failed; trying again")
                self._obey(Decision(self._serves))
        self._leave()

    def _pause(self) -> float:
        heard = self._known.heard
        workers = heard.workers if heard else 1
        decision = self._decision
        waits = heard is not None and any(heard.demand[name].depth for name in decision.claims if name in heard.demand)
        pressed = (
            waits
            or decision.evict
            or decision.load
            or decision.after
            or decision.claims - (heard.claims if heard else set())
        )
        return min(HEARTBEAT_S, PRESSED_S * max(1.0, workers / WORKERS_PRESSED)) if pressed else HEARTBEAT_S

    def _turn(self) -> None:
        """Tell, ask, decide, obey. A claim that the decision makes is told at once."""
        for _ in range(2):
            self._exchange()
            before = self._decision
            decision = decide(self._view(), self._rules)
            self._obey(decision)
            heard = self._known.heard
            if heard is None or decision.claims <= heard.claims or decision.claims == before.claims:
                return

    def _exchange(self) -> None:
        known, now = self._known, time.monotonic()
        told, answered = self._tell()
        try:
            heard = self._ask(self._about(), told)
        except (RedisError, OSError) as error:
            if now - self._complained_at > COMPLAIN_EVERY_S:
                self._complained_at = now
                logger.warning("Workers cannot tell each other what they hold, trying again: %s", error)
            if now - known.at > LIFETIME_S:
                known.heard = None
            return
        clock.heard(heard.at)
        self._known = _Known(heard, now, told, answered)

    def _leave(self) -> None:
        gone = {name: Told(-1, -1, 0, "drop", -1) for name in self._serves}
        try:
            self._ask(None, gone)
        except (RedisError, OSError) as error:
            logger.info("What this worker holds is announced for %.0f s more: %s", LIFETIME_S, error)

    # --- what is told ---

    def _tell(self) -> tuple[dict[str, Told], Counter[str]]:
        """What to tell of each checkpoint, and the count of answers that this brings up to."""
        router, known = self._serving.router, self._known
        held, building = set(router.loaded), set(router.building) | self._loaders.keys()
        failed = self._failed_for()
        answered = Counter(self._serving.tally.snapshot().answered)
        told = {}
        for name in self._serves:
            before = known.told.get(name, Told())
            told[name] = Told(
                holds=_change(name in held, before.holds),
                loads=_change(name in building and name not in held, before.loads),
                done=answered[name] - known.answered[name],
                claim=self._claim_of(name),
                failed_s=failed.get(name, -1.0 if before.failed_s > 0 else 0.0),
            )
        return told, answered

    def _claim_of(self, name: str) -> Literal["keep", "drop", ""]:
        if name in self._decision.claims:
            return "keep"
        return "drop" if self._known.heard is None or name in self._known.heard.claims else ""

    def _about(self) -> WorkerEntry:
        snapshot, router = self._serving.tally.snapshot(), self._serving.router
        since = {name: round(at, 3) for name, at in snapshot.since.items() if name in router.loaded}
        return replace(
            self._entry,
            holds=since,
            loading={name: round(at, 3) for name, at in snapshot.loading.items()},
            pinned=tuple(sorted(router.pinned)),
            at_work=len(state.reserved_requests),
            rates={name: round(rate, 2) for name, rate in snapshot.rates.items()},
            reads=self._decision.read,
        )

    # --- what is known ---

    def _view(self) -> View:
        router, now = self._serving.router, time.monotonic()
        in_hand = self._in_hand()
        noted = self._serving.tally.snapshot()
        held = tuple(
            Held(
                name,
                since=now - (noted.now - noted.since.get(name, noted.now)),
                at_work=in_hand[queue_of(name)],
                pinned=name in router.pinned,
                size=size,
            )
            for name, size in router.sizes.items()
        )
        if in_hand:
            self._last_work = now
        heard = self._known.heard
        return View(
            now=now,
            serves=self._serves,
            capacity=router.capacity,
            held=held,
            loading=frozenset(set(router.building) | self._loaders.keys()) - {one.name for one in held},
            demand=None if heard is None else heard.demand,
            claims=frozenset() if heard is None else heard.claims,
            failed_until={name: now + left for name, left in self._failed_for().items()},
            idle_s=now - self._last_work,
            sizes={name: router.estimate(name) for name in self._serves},
            load_s=router.load_seconds,
            workers=1 if heard is None else max(1, heard.workers),
        )

    def _failed_for(self) -> dict[str, float]:
        """Checkpoints that could not be loaded lately, and for how many seconds more they are left alone."""
        noted = self._serving.tally.snapshot()
        left = {name: failure.at + RETRY_LOAD_S - noted.now for name, failure in noted.failures.items()}
        return {name: seconds for name, seconds in left.items() if seconds > 0}

    def _in_hand(self) -> Counter[str]:
        """Messages that this process has taken and not finished, by queue."""
        requests = copied(state.reserved_requests)
        return Counter(str((request.delivery_info or {}).get("routing_key")) for request in requests)

    # --- what is obeyed ---

    def _obey(self, decision: Decision) -> None:
        held = self._serving.router.loaded
        self._decision = decision
        managed = frozenset(map(queue_of, self._serves))
        warm = tuple(queue_of(name) for name in decision.read if name in held)
        cold = tuple(queue_of(name) for name in decision.read if name not in held)
        queue_order.current.order = queue_order.Order(managed, warm, cold)
        for name in decision.load:
            self._load(name)

    def _load(self, name: str) -> None:
        """Load in a thread of its own what waits although its queue is read; the messages find it there."""
        if name in self._loaders:
            return

        def load() -> None:
            try:
                self._serving.router.load(name)
            except Exception as error:  # noqa: BLE001 - counted as a failed load, and told by every message that wants it
                logger.warning("Checkpoint %s, for which requests wait, could not be loaded: %s", name, error)
            finally:
                del self._loaders[name]
                self._wake.set()

        self._loaders[name] = threading.Thread(target=load, name=f"laya-load-{name}", daemon=True)
        self._loaders[name].start()
        self._wake.set()  # the others are told that it is being loaded

    def _ranks(self) -> Mapping[str, int]:
        """Which residents go first when a build needs room: those about to go, and the young last."""
        decision, noted = self._decision, self._serving.tally.snapshot()
        ranks = {name: 1 for name, at in noted.since.items() if noted.now - at < self._rules.dwell_s}
        return ranks | dict.fromkeys(decision.evict, -1)

    def _cold_room(self, cold: Collection[str]) -> int:
        """Half the threads may wait for a load; the others are for what is resident."""
        in_hand = self._in_hand()
        return max(1, self._threads // 2) - sum(in_hand[queue] for queue in cold)

    # --- asked by serving ---

    def should_answer_elsewhere(self, checkpoint: str, queue: str) -> bool:
        """Whether a message that came by `queue` should go to the checkpoint's queue, as it is not resident here."""
        router = self._serving.router
        if checkpoint in router.loaded or checkpoint in router.building:
            return False
        own = queue_of(checkpoint)
        if queue == own and queue_order.current.order.lets_in(own):
            return False
        heard = self._known.heard
        if checkpoint in self._serves:
            return True
        return heard is not None and checkpoint in heard.demand and heard.demand[checkpoint].holders > 0

    def others_could(self, checkpoint: str) -> bool:
        """Whether a live worker is left that has not failed to load the checkpoint lately."""
        heard = self._known.heard
        if heard is None or checkpoint not in heard.demand:
            return False
        demand = heard.demand[checkpoint]
        failed = demand.failures + (0 if self._known.told[checkpoint].failed_s > 0 else 1)
        return heard.workers > failed


class _Changes(BaseHook):
    """Tells the others at once when a checkpoint has come or gone."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def on_load(self, ctx: PredictContext) -> None:  # noqa: ARG002 - an event's
        """Something is resident."""
        self._tell()

    def on_evict(self, ctx: PredictContext) -> None:  # noqa: ARG002 - an event's
        """Something has gone."""
        self._tell()


def _change(now: bool, before: int) -> int:
    """What to say of a fact: again and again while it holds, and once when it has ended."""
    return 1 if now else -1 if before > 0 else 0
