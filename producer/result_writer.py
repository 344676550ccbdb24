"""Results on their way to the store: many tasks' in one round trip, and each by one script instead of three commands.

A thread that has a result to store sends it at once when the line is free; while the line is busy results gather, and
go together. The guarantees are Celery's: a stored success is never overwritten, subscribers are told, and the call
returns only when the result is stored, so that a message is acknowledged after its result.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from redis.exceptions import NoScriptError

STORE: Final = """
-- Store a result and tell its subscribers, unless a success is stored already.
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


@dataclass(slots=True, eq=False)
class _Write:
    key: bytes | str
    value: bytes | str
    expires: int
    progress: int = 0
    done: threading.Lock = field(default_factory=threading.Lock)
    error: BaseException | None = None
    leads: bool = False


class ResultWriter:
    """Stores results through a redis-py client. Safe to use from many threads; keeps the order of one key's writes."""

    def __init__(self, client: Callable[[], Any]) -> None:
        """Write through whatever `client()` is at the time."""
        self._client = client
        self._lock = threading.Lock()  # guards the fields below; never held during a round trip
        self._waiting: list[_Write] = []
        self._progress: dict[bytes | str, _Write] = {}
        self._busy = False
        self._timer: threading.Timer | None = None

    def write(self, key: bytes | str, value: bytes | str, expires: int) -> None:
        """Store a result and return when it is stored.

        Raises:
            redis.exceptions.RedisError: as the server or the connection has it; nothing is retried here.
        """
        mine = _Write(key, value, expires)
        with self._lock:
            self._progress.pop(key, None)  # what came before it is of no interest any more
            if self._busy:
                mine.done.acquire()
                self._waiting.append(mine)
            else:
                self._busy = mine.leads = True
        if not mine.leads:
            mine.done.acquire()  # until it is stored, or until this thread is to send the next lot
        if mine.leads:
            self._lead(mine)
        if mine.error is not None:
            raise mine.error

    def write_progress(self, key: bytes | str, value: bytes | str, expires: int) -> None:
        """Store a state on the way to a result within `PROGRESS_S`, unless the result comes first. Never raises."""
        with self._lock:
            self._progress[key] = _Write(key, value, expires, progress=1)
            if self._timer is None:
                self._timer = threading.Timer(PROGRESS_S, self._flush_progress)
                self._timer.daemon = True
                self._timer.start()

    def _lead(self, mine: _Write) -> None:
        """Send this thread's result with those that wait, then hand the line to a thread that came in the meantime."""
        with self._lock:
            together = [mine, *self._waiting[: TOGETHER_AT_MOST - 1]]
            del self._waiting[: TOGETHER_AT_MOST - 1]
        try:
            self._send(together)
        finally:
            with self._lock:
                following = self._waiting.pop(0) if self._waiting else None
                if following is None:
                    self._busy = False
                else:
                    following.leads = True
            if following is not None:
                following.done.release()
            for write in together:
                if write is not mine:
                    write.done.release()

    def _flush_progress(self) -> None:
        with self._lock:
            self._timer = None
            writes = list(self._progress.values())
            self._progress.clear()
        if writes:
            self._send(writes)

    def _send(self, writes: list[_Write]) -> None:
        """Store each; a failure goes to its own write, one of the connection to all that it concerns."""
        try:
            unknown = self._run(writes, "EVALSHA", STORE_SHA)
            if unknown:
                self._run(unknown, "EVAL", STORE)
        except BaseException as error:  # noqa: BLE001  # raised by each waiting thread as its own
            for write in writes:
                write.error = copy.copy(error)  # threads must not share one traceback

    def _run(self, writes: list[_Write], command: str, script: str) -> list[_Write]:
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
        return unknown
