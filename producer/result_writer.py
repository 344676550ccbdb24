"""Results on their way to the store: many tasks' in one round trip, and each by one script instead of three commands.

A thread that has a result to store sends it at once when the line is free; while the line is busy results gather, and
go together. The guarantees are Celery's: a stored success is never overwritten, subscribers are told, and the call
returns only when the result is stored, so that a message is acknowledged after its result.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.exceptions import NoScriptError

from producer.failover import Moved, raise_if_moved

STORE: Final = """#!lua flags=allow-oom
-- Store a result and tell its subscribers, unless a success is stored already. Also when memory is full: a result is
-- what lets its message, which is larger, go; and nobody can publish a new one meanwhile.
-- KEYS: the result's key, which is its channel too.
-- ARGV: value, seconds to keep it (0 for ever), 1 if it is no result but progress, which overwrites no result at all
local stored = redis.call('GET', KEYS[1])
if stored then
  if string.sub(stored, 1, 20) == '{"status": "SUCCESS"' then return 0 end
  local ok, meta = pcall(cjson.decode, stored)
  local status = ok and type(meta) == 'table' and meta.status
  if status == 'SUCCESS' then return 0 end
  if ARGV[3] == '1' and (status == 'FAILURE' or status == 'REVOKED') then return 0 end
end
if tonumber(ARGV[2]) > 0 then
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[1])
end
redis.call('PUBLISH', KEYS[1], ARGV[1])
return 1
"""
STORE_SHA: Final = hashlib.sha1(STORE.encode(), usedforsecurity=False).hexdigest()

TOGETHER_AT_MOST: Final = 64
"""Results in one round trip: the last of them must not wait long for the first."""

PROGRESS_S: Final = 0.05
"""Seconds within which a task's start is seen in the store; a task that ends sooner never shows one."""

Text = bytes | str


@dataclass(slots=True, eq=False)
class _Write:
    key: Text
    value: Text
    expires: int
    progress: int = 0
    stored: bool = False
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Lot:
    """What one thread brings to the line. Its turn comes when it is stored, or when it is to send the next lots."""

    writes: Sequence[_Write]
    leads: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)


class ResultWriter:
    """Stores results through a redis-py client. Safe to use from many threads; keeps the order of one key's writes."""

    def __init__(self, client: Callable[[], Any]) -> None:
        """Write through whatever `client()` is at the time."""
        self._client = client
        self._lock = threading.Lock()  # guards the fields below; never held during a round trip
        self._line: list[_Lot] = []
        self._busy = False
        self._progress: dict[Text, tuple[Callable[[], Text], int]] = {}
        self._timer: threading.Timer | None = None

    def write(self, key: Text, value: Text, expires: int) -> None:
        """Store a result and return when it is stored.

        Args:
            key: where it is stored, and the channel of its subscribers.
            value: the result as it is stored.
            expires: seconds to keep it; 0 for ever.

        Raises:
            redis.exceptions.RedisError: as the server or the connection has it; nothing is retried here.
            Moved: the server became a replica; the next try finds the new primary.
        """
        mine = _Write(key, value, expires)
        with self._lock:
            self._progress.pop(key, None)  # what came before it is of no interest any more
        self._store([mine])
        if mine.error is not None:
            self._raise(mine.error)
        if not mine.stored:
            raise RuntimeError("the result was not stored, and nobody knows why")

    def write_progress(self, key: Text, value: Callable[[], Text], expires: int) -> None:
        """Store a state on the way to a result within `PROGRESS_S`, unless the result comes first. Never raises.

        Args:
            key: where it is stored.
            value: makes what is stored, if it is needed at all.
            expires: seconds to keep it; 0 for ever.
        """
        with self._lock:
            self._progress[key] = (value, expires)
            if self._timer is None:
                self._timer = threading.Timer(PROGRESS_S, self._flush_progress)
                self._timer.daemon = True
                self._timer.start()

    def _flush_progress(self) -> None:
        with self._lock:
            self._timer = None
            waiting, self._progress = self._progress, {}
        if waiting:  # a result that comes from here on stands in the line behind these
            self._store([_Write(key, value(), expires, progress=1) for key, (value, expires) in waiting.items()])

    def _store(self, writes: Sequence[_Write]) -> None:
        """Store these, with others or alone; each has its outcome in it afterwards."""
        mine = _Lot(writes)
        with self._lock:
            if self._busy:
                mine.turn.acquire()
                self._line.append(mine)
            else:
                self._busy = mine.leads = True
        if not mine.leads:
            mine.turn.acquire()
        if mine.leads:
            self._lead(mine)

    def _lead(self, mine: _Lot) -> None:
        """Send this thread's lot with those that wait, then hand the line to a thread that came in the meantime."""
        together = [mine]
        try:
            with self._lock:
                room = TOGETHER_AT_MOST - len(mine.writes)
                while self._line and (room := room - len(self._line[0].writes)) >= 0:
                    together.append(self._line.pop(0))
            self._send([write for lot in together for write in lot.writes])
        finally:
            with self._lock:
                following = self._line.pop(0) if self._line else None
                self._busy = following is not None
                if following is not None:
                    following.leads = True
            for lot in (*together[1:], following):
                if lot is not None:
                    lot.turn.release()

    def _send(self, writes: Sequence[_Write]) -> None:
        """Store each; a failure goes to its own write, one of the connection to all that it concerns."""
        try:
            unknown = self._run(writes, "EVALSHA", STORE_SHA)
            if unknown:
                self._run(unknown, "EVAL", STORE)
        except BaseException as error:  # noqa: BLE001  # raised by each waiting thread as its own
            for write in writes:
                if not write.stored:
                    write.error = write.error or error

    def _run(self, writes: Sequence[_Write], command: str, script: str) -> list[_Write]:
        """Run the script for each in one round trip; return those that the server had no script for."""
        with self._client().pipeline(transaction=False) as pipe:
            for write in writes:
                pipe.execute_command(command, script, 1, write.key, write.value, write.expires, write.progress)
            replies = pipe.execute(raise_on_error=False)
        unknown = []
        for write, reply in zip(writes, replies, strict=True):
            if isinstance(reply, NoScriptError):
                unknown.append(write)
            elif isinstance(reply, BaseException):
                write.error = reply
            else:
                write.stored = True
        return unknown

    def _raise(self, error: BaseException) -> None:
        """Raise a write's error as this thread's own: many that share one would share its traceback."""
        try:
            raise_if_moved(error)
        except Moved:
            self._client().connection_pool.disconnect()
            raise
        try:
            own = copy.copy(error)
        except Exception:  # noqa: BLE001  # one that cannot be copied is still better than none
            raise error from None
        raise own
