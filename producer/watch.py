"""One subscription for all who wait for a result in this process, each with a future of its own.

A thread reads the notices and resolves the futures; it starts with the first wait, survives a server that
restarts, and ends when nobody has waited for a while. Nothing is kept for a wait that is over.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from celery import states
from redis.exceptions import RedisError

from producer.errors import BrokerUnavailable, PredictionFailed

Meta = dict[str, Any]
"""A finished task as the result store keeps it: `status`, `result`, …"""

PATIENCE_SECONDS: Final = 15.0
"""How long the server may be away before those who wait get an error; a restart is shorter."""

_IDLE_SECONDS: Final = 30.0
_BACKOFF_SECONDS: Final = 0.2
_TICK_SECONDS: Final = 1.0
# Longer than the thread looks at one thing, a server that is away included.
_CLOSE_SECONDS: Final = 5.0
# A connection may die without a word. After this long without one we ask, after twice that we connect anew.
_SILENCE_SECONDS: Final = 5.0
_LOST: Final = (RedisError, OSError)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Wait:
    future: Future[Meta]
    until: float  # on the monotonic clock


class ResultWatch:
    """Futures for results, resolved by one thread. Safe to use from many threads, and after a fork."""

    def __init__(self, store: Any) -> None:
        """Watch the results of a `producer.results.ResultStore`."""
        self._store = store
        # Its own channel is always subscribed, so that the connection never leaves the subscribed state.
        self._own = bytes(store.get_key_for_task(f"watch-{uuid.uuid4()}"))
        self._start_anew()

    def _start_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[_Wait]] = {}
        self._pubsub: Any = None
        self._thread: threading.Thread | None = None
        self._lost_since: float | None = None

    @property
    def lost(self) -> bool:
        """Whether the server cannot be reached just now."""
        return self._lost_since is not None

    def expect(self, task_id: str, seconds: float | None = None) -> Future[Meta]:
        """A future of the finished task.

        Args:
            task_id: the task; it may be published later, run already, or be done.
            seconds: how long anybody will wait. Then, or once the future is cancelled, the wait is forgotten.

        The future fails with `BrokerUnavailable` when the server stays away for long. Several may wait for one task.
        """
        if os.getpid() != self._pid:
            self._start_anew()  # the thread and the futures are the parent's
        key = bytes(self._store.get_key_for_task(task_id))
        future: Future[Meta] = Future()
        until = float("inf") if seconds is None else time.monotonic() + seconds
        with self._lock:
            waits = self._waiting.setdefault(key, [])
            waits.append(_Wait(future, until))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="laya-results", daemon=True)
                self._thread.start()
            elif self._pubsub is not None:
                self._subscribe(key)  # again, where another waits already: the answer brings the look at the store
        return future

    def close(self) -> None:
        """End the thread and its subscription. Who still waits gets `BrokerUnavailable`; a later wait starts anew."""
        if os.getpid() != self._pid:
            return  # the thread and its connection are the parent's
        with self._lock:
            thread, pubsub, self._pubsub = self._thread, self._pubsub, None
            waiting, self._waiting = self._waiting, {}
            if pubsub is not None:
                with suppress(*_LOST):
                    pubsub.ping()  # the reply wakes the thread, which sees that nobody wants its subscription any more
        error = BrokerUnavailable("the app was closed while the result was awaited")
        for one in chain.from_iterable(waiting.values()):
            with suppress(InvalidStateError):
                one.future.set_exception(error)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_SECONDS)

    def _subscribe(self, key: bytes) -> None:
        """Ask for notices, under the lock. On a dead connection the reading thread will do it again."""
        try:
            self._pubsub.subscribe(key)
        except _LOST:
            self._pubsub = None

    def _run(self) -> None:
        """The thread: connect, read until nobody waits or the connection breaks, and again."""
        while True:
            pubsub = None
            try:
                pubsub = self._connect()
                self._read_until_idle(pubsub)
                if self._end():
                    return
            except _LOST as error:
                self._forget_the_late()
                if self._end():
                    return
                self._away(error)
                time.sleep(_BACKOFF_SECONDS)
            except Exception:
                # A thread that subscribes may find the connection dead, and close it under the one that reads.
                if not self._found_dead(pubsub):
                    logger.exception("Waiting for results failed; connecting anew")
                time.sleep(_BACKOFF_SECONDS)
            finally:
                if pubsub is not None:
                    pubsub.close()

    def _found_dead(self, pubsub: Any) -> bool:
        with self._lock:  # whoever subscribes holds it until he has said so
            return pubsub is not None and self._pubsub is not pubsub

    def _connect(self) -> Any:
        """A fresh subscription to everything that is awaited."""
        pubsub = self._store.client.pubsub()
        with self._lock:
            keys = list(self._waiting)
        pubsub.subscribe(self._own, *keys)
        with self._lock:
            late = [key for key in self._waiting if key not in keys]
            if late:
                pubsub.subscribe(*late)
            self._pubsub = pubsub
        if self._lost_since is not None:
            logger.info("The result store answers again")
            self._lost_since = None
        return pubsub

    def _read_until_idle(self, pubsub: Any) -> None:
        """Read until nobody has waited for a while, or a subscription found the connection dead."""
        heard = active = time.monotonic()
        while pubsub is self._pubsub and time.monotonic() - active < _IDLE_SECONDS:
            heard = self._read(pubsub, heard)
            self._forget_the_late(pubsub)
            if self._waiting:
                active = time.monotonic()

    def _read(self, pubsub: Any, heard: float) -> float:
        """Read what is there, waiting a moment for it; when the server was last heard."""
        confirmed: list[bytes] = []
        message = pubsub.get_message(timeout=_TICK_SECONDS)
        if message is None:
            silence = time.monotonic() - heard
            if silence > 2 * _SILENCE_SECONDS:
                raise OSError("the result store went silent")
            if silence > _SILENCE_SECONDS:
                pubsub.ping()
            return heard
        while message is not None:
            if message["type"] == "message":
                self._deliver(message["channel"], message["data"])
            elif message["type"] == "subscribe" and message["channel"] != self._own:
                confirmed.append(message["channel"])
            message = pubsub.get_message(timeout=0)
        # Only now is it certain that a later result is announced to us; an earlier one is in the store.
        confirmed = [key for key in confirmed if key in self._waiting]
        if confirmed:
            for key, payload in zip(confirmed, self._store.client.mget(confirmed), strict=True):
                if payload is not None:
                    self._deliver(key, payload)
        return time.monotonic()

    def _deliver(self, key: bytes, payload: bytes) -> None:
        try:
            meta = self._store.decode_result(payload)
            status = meta["status"]
        except Exception as error:  # noqa: BLE001 - whatever stands in the store, the reading goes on
            cause = type(error).__name__
            self._resolve(key, None, PredictionFailed("the result in the store cannot be read", {"cause": cause}))
            return
        if status in states.READY_STATES:
            self._resolve(key, meta, None)

    def _resolve(self, key: bytes, meta: Meta | None, error: Exception | None) -> None:
        with self._lock:
            waits = self._waiting.pop(key, [])
            if waits and self._pubsub is not None:
                with suppress(*_LOST):  # the next read finds the connection dead; this result is here
                    self._pubsub.unsubscribe(key)
        for one in waits:
            with suppress(InvalidStateError):  # it may have been cancelled meanwhile
                if error is not None:
                    one.future.set_exception(error)
                else:
                    one.future.set_result(meta or {})

    def _forget_the_late(self, pubsub: Any = None) -> None:
        """Drop the waits that are over, one way or the other."""
        now = time.monotonic()
        with self._lock:
            late = []
            for key, waits in self._waiting.items():
                waits[:] = [one for one in waits if not one.future.done() and now <= one.until]
                if not waits:
                    late.append(key)
            for key in late:
                del self._waiting[key]
            if late and pubsub is not None:
                pubsub.unsubscribe(*late)

    def _away(self, error: BaseException) -> None:
        """The server is not reached: say so once, and after a while to everybody who waits."""
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
            logger.warning("The result store cannot be reached: %s", error)
        elif now - self._lost_since > PATIENCE_SECONDS:
            for key in list(self._waiting):
                self._resolve(key, None, BrokerUnavailable(f"the result store cannot be reached: {error}"))

    def _end(self) -> bool:
        """Whether nobody waits; then the thread ends, and the next wait starts another."""
        with self._lock:
            self._pubsub = None
            if self._waiting:
                return False
            self._thread = None
            self._lost_since = None
        return True
