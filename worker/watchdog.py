"""When a worker is hung, and what it does then: says so, lets the others finish, puts back what waits, and ends.

A thread cannot be stopped from outside. A hook or a forward pass that never returns keeps its place, and perhaps the
device, for good; a process that ends is replaced by its supervisor within seconds. What is taken for hung is decided in
`worker.hanging`; the thread here also writes the pulse that probes read. Which request is poison is a matter of
`worker.redelivery`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from datetime import UTC
from typing import Any, Final

from celery.worker import state

from producer.errors import DeadlineExceeded
from worker.broker_scripts import UNREACHABLE
from worker.clock import clock
from worker.hanging import AtWork, Limits, Verdict, judge
from worker.health import Pulse, PulseFile, clock_note, run_directory
from worker.in_hand import copied
from worker.room import room

logger = logging.getLogger(__name__)

EXIT_HUNG: Final = 70  # EX_SOFTWARE of sysexits.h
"""With which a hung worker ends."""

EVERY_S: Final = 1.0
"""Seconds between two looks."""

GRACE_S: Final = 10.0
"""Seconds that the other requests of a hung worker get to finish."""

CLOCK_EVERY_S: Final = 60.0
"""Seconds between two questions for the broker's time, and two lines of the log about a clock that is wrong."""

FRAMES: Final = 8
"""Frames of each thread that are logged."""


class Watchdog:
    """Looks at a worker every second, from a thread of its own."""

    def __init__(self, worker: Any) -> None:
        """Watch a Celery worker; `start` begins."""
        settings = worker.app.settings
        self._worker = worker
        self._limits = Limits(settings.hang_seconds, settings.load_seconds)
        self._file: PulseFile | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="laya-watchdog", daemon=True)
        self._free_since = time.monotonic()
        self._turned_at: float | None = None
        self._excused_at = 0.0
        self._seen: dict[str, float] = {}
        self._clock_next = self._ask_next = 0.0
        self._answered: set[str] = set()
        self._hung_since: float | None = None
        self._hanging: tuple[str, ...] = ()
        self.channel: Any = None
        """The channel that messages are taken through; None while there is none."""
        self._last_channel: Any = None

    @property
    def hung(self) -> bool:
        """Whether the worker is about to end, and shall take nothing."""
        return self._hung_since is not None

    def start(self) -> None:
        """Begin to look."""
        directory = run_directory(self._worker.app.settings.run_dir)
        try:
            self._file = PulseFile(directory)
        except OSError as error:
            logger.warning("no pulse is written, `laya-workers health` will find no worker: %s: %s", directory, error)
        self._thread.start()

    def stop(self) -> None:
        """End in order."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(5)
        if self._file is not None:
            self._file.close()

    def begin(self, channel: Any) -> None:
        """There is a connection: messages are taken through this channel from now on."""
        self.channel = self._last_channel = channel
        self._turned_at = self._free_since = time.monotonic()

    def give_back(self, but: Iterable[str] = ()) -> None:
        """Send the last acknowledgements, and put back what is not finished, but for the tasks of these ids."""
        channel = self._last_channel
        if channel is None:
            return
        kept = [request for request in copied(state.reserved_requests) if request.id not in set(but)]
        kept = [request for request in kept if not request.acknowledged]
        tags = [request.message.delivery_tag for request in kept]
        if (redelivery := getattr(self._worker, "redelivery", None)) is not None:
            redelivery.give_back(kept)
        channel.attempt(channel.records.flush, "send the last acknowledgements")
        channel.attempt(lambda: channel.records.put_back(tags), "put back what others may do")

    def turn(self) -> None:
        """The event loop comes by, or is trying to reach its broker."""
        self._turned_at = time.monotonic()

    def pulse(self, verdict: Verdict | None = None) -> Pulse:
        """The worker now."""
        now = time.monotonic()
        taker = getattr(self.channel, "taker", None)
        verdict = verdict or self._judge()
        return Pulse(
            at=time.time(),
            pid=os.getpid(),
            node=str(self._worker.hostname),
            ready=taker is not None,
            turned=self._turned_s(now),
            answered=now - max(taker.answered_at, self._free_since) if taker is not None else 0.0,
            taken=now - taker.taken_at if taker is not None and taker.taken_at is not None else None,
            room=self._room(),
            working=len(state.active_requests),
            oldest=max((one.seconds for one in self._at_work()), default=0.0),
            queues=taker.queues if taker is not None else (),
            hung=verdict.reasons,
            store_away=self._store_away(),
        )

    def _store_away(self) -> int:
        waiting: int = getattr(self._worker.app.backend, "waiting", 0)
        return waiting

    def _room(self) -> int:
        quarantine = getattr(self._worker, "quarantine", None)
        if self.channel is None or (quarantine is not None and quarantine.takes_nothing):
            return 0
        return max(0, room(self._worker.consumer))

    # --- the thread ---

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self._look()
            except Exception:
                logger.exception("the watchdog could not look")

    def _look(self) -> None:
        if self._loading_s() or self._store_away():
            self._excused_at = time.monotonic()
        if not self._room():
            self._free_since = time.monotonic()  # who has no room asks for nothing, and is told nothing
        verdict = self._judge()
        if self._file is not None:
            try:
                self._file.write(self.pulse(verdict))
            except OSError as error:
                logger.warning("the pulse cannot be written: %s", error)
        self._answer_late(verdict.late)
        self._compare_clocks()
        if not verdict.reasons:
            if self._hung_since is not None:
                logger.warning("this worker was taken for hung, and goes on")
            self._hung_since = None
            return
        now = time.monotonic()
        if self._hung_since is None:
            self._hung_since = now
            # What waits behind it meanwhile becomes as old, and is not what hangs.
            self._hanging = verdict.hanging
            self._complain(verdict)
        others = [one for one in self._at_work() if one.id not in self._hanging]
        if not others or now - self._hung_since > GRACE_S:
            self._end(verdict)

    def _judge(self) -> Verdict:
        computing = getattr(getattr(self._worker.app.service, "router", None), "computing_s", 0.0)
        return judge(self._at_work(), self._loading_s(), computing, self._turned_s(time.monotonic()), self._limits)

    def _turned_s(self, now: float) -> float:
        """Seconds since the loop came by; 0 before it first has, for a start takes the time it takes."""
        return 0.0 if self._turned_at is None else now - max(self._turned_at, self._excused_at)

    def _loading_s(self) -> float:
        tally = getattr(self._worker.app.service, "tally", None)
        if tally is None:
            return 0.0
        return max((tally.now() - since + 0.001 for since in tally.snapshot().loading.values()), default=0.0)

    def _at_work(self) -> list[AtWork]:
        # Celery notes the start by a clock that may be set; this one counts from when it was first seen.
        now, wall = time.monotonic(), clock.now()
        requests = copied(state.active_requests)
        self._seen = {request.id: self._seen.get(request.id, now) for request in requests}
        found = []
        for request in requests:
            since = max(self._seen.get(request.id, now), self._excused_at)
            found.append(AtWork(request.id, request.message.delivery_tag, now - since, _overdue(request, wall)))
        return found

    def _answer_late(self, ids: Iterable[str]) -> None:
        """Store the error of requests whose time is up while they are worked on; what they come to is not stored."""
        requests = {request.id: request for request in copied(state.active_requests)}
        self._answered &= set(requests)
        for task_id in ids:
            request = requests.get(task_id)
            if request is None or task_id in self._answered:
                continue
            error = DeadlineExceeded("the request was still worked on when its time was up", {"task_id": task_id})
            try:
                request.task.backend.close_with(task_id, error, request)
            except Exception as failure:  # noqa: BLE001 - the caller's own wait ends all the same
                logger.warning("the deadline of task %s could not be stored: %s", task_id, failure)
                continue
            self._answered.add(task_id)

    def _compare_clocks(self) -> None:
        """Say so if this machine's clock and the broker's differ: deadlines are times of the backends' clocks."""
        self._ask_for_the_time()
        now = time.monotonic()
        note = clock_note(clock.ahead or 0.0)
        if note is None:
            self._clock_next = now  # one that goes wrong later is news
        elif now >= self._clock_next:
            self._clock_next = now + CLOCK_EVERY_S
            logger.warning("%s", note)

    def _ask_for_the_time(self) -> None:
        """Ask the broker now and then; heartbeats say it more often, where they may."""
        channel, now = self.channel, time.monotonic()
        if channel is None or now < self._ask_next:
            return
        self._ask_next = now + CLOCK_EVERY_S
        try:
            with channel.conn_or_acquire() as client:
                seconds, micros = client.time()
        except UNREACHABLE:
            return
        clock.heard(seconds + micros / 1_000_000)

    def _complain(self, verdict: Verdict) -> None:
        logger.critical(
            "this worker hangs and ends within %.0f s with exit code %d: %s",
            GRACE_S,
            EXIT_HUNG,
            "; ".join(verdict.reasons),
        )
        for place in places():
            logger.critical("%s", place)

    def _end(self, verdict: Verdict) -> None:
        """Put back what others may do, and end. What hangs stays on record: it comes back overdue, as a suspect."""
        logger.critical("this worker ends with exit code %d: %s", EXIT_HUNG, "; ".join(verdict.reasons))
        self.give_back(self._hanging)
        if self._file is not None:
            self._file.close()
        logging.shutdown()
        os._exit(EXIT_HUNG)


def _overdue(request: Any, now: float) -> float | None:
    when = request.expires
    if when is None:
        return None
    return now - float((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def places() -> list[str]:
    """Where every other thread is, innermost first, without a value of any variable."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            frames = traceback.extract_stack(frame)[-FRAMES:]
            where = " < ".join(f"{one.name} ({one.filename}:{one.lineno})" for one in reversed(frames))
            found.append(f"thread {names.get(ident, ident)}: {where}")
    return found
