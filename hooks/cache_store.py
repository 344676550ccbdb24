"""The server behind a skip cache: look up, keep, drop, and the lease of whoever computes an answer.

Every call has a budget of time, and fails with `StoreAway` rather than wait longer. While the server is out of order
nothing is tried. What the data mean is not known here.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import hiredis

from hooks.cache_breaker import CLOSED, OPEN, Breaker
from hooks.cache_key import CacheKey
from hooks.cache_links import Command, LinkFailed, Links

FAILURES: Final = 5
"""Failures in a row after which the server is left alone for a while: fewer may be one short pause of the network."""

MANY: Final = 128
"""Keys of one command; more would hold up other clients of the server."""

AWAKE: Final = 0.9
"""The part of a budget for which the server is waited for; the rest is for the thread to be woken and go on."""

WRITE_SECONDS: Final = 1.0
"""For one bundle of writes. No prediction waits for them."""

TTL_JITTER: Final = 0.1
"""The part of a value's time to live that is taken off at random, so that what was written together does not expire
together."""


class StoreAway(Exception):
    """The server did not answer; the text is a word or two for a log."""


class LeftAlone(StoreAway):
    """The server is out of order and was not asked."""


class Turn(Enum):
    """What a look-up that found nothing means for the caller."""

    LEASED = 1
    """Compute it: the lease is yours."""

    HELD = 0
    """Another computes it."""

    UNLEASED = 2
    """Compute it: the server takes no lease just now."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest by which the server knows it."""

    text: str
    sha: str


def _script(text: str) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


# KEYS: values, then the lease of each. ARGV: token, milliseconds. A server that is full refuses the SETs alone. What is
# no text is no value, and is written over.
_LOOK = _script("""
local number, turns = #KEYS / 2, {}
for at = 1, number do
  local found = redis.pcall('GET', KEYS[at])
  if type(found) == 'string' then
    turns[at] = found
  else
    local set = redis.pcall('SET', KEYS[number + at], ARGV[1], 'NX', 'PX', ARGV[2])
    if not set then turns[at] = 0 elseif set.ok then turns[at] = 1 else turns[at] = 2 end
  end
end
return turns
""")

# KEYS: value, lease. ARGV: data, milliseconds, token. The lease ends even where the value is refused.
_KEEP = _script("""
local set = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if ARGV[3] ~= '' and redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end
return set
""")

# KEYS: lease. ARGV: token.
_RELEASE = _script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
""")


@dataclass(frozen=True, slots=True)
class Keep:
    """Write this value, and end the lease with this token if there is one."""

    key: CacheKey
    data: bytes
    token: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """End the lease with this token."""

    key: CacheKey
    token: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove a value that is of no use."""

    key: CacheKey


Write = Keep | Release | Drop


class CacheStore:
    """One server. Safe to use from many threads."""

    def __init__(
        self,
        links: Links,
        where: str,
        *,
        budget: float,
        ttl: float,
        lease: float,
        pause: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask over these links.

        Args:
            links: connections to the server.
            where: what the log may call it.
            budget: seconds of one look-up.
            ttl: seconds that a value is kept.
            lease: seconds of a lease.
            pause: seconds that a server out of order is left alone.
            clock: of the pause.
        """
        self._links, self._budget, self._ttl, self._lease = links, AWAKE * budget, ttl, lease
        self.reading = Breaker(f"The skip cache at {where}", FAILURES, pause, clock)
        self.writing = Breaker(f"Writing to the skip cache at {where}", FAILURES, pause, clock)

    def deadline(self, keys: int = 1) -> float:
        """Until when, on the clock of `time.monotonic`, a look-up of so many keys that begins now may take."""
        return time.monotonic() + self._budget * math.ceil(keys / MANY)

    def fetch(self, entries: Sequence[str], deadline: float | None = None) -> list[bytes | None]:
        """The stored data of each of these entries, None where there is none.

        Args:
            entries: names of values.
            deadline: of the look-up that this is a part of; None gives each command a budget of its own.

        Raises:
            StoreAway: it is not known.
        """
        found: list[bytes | None] = []
        for start in range(0, len(entries), MANY):
            (reply,) = self._read([("MGET", *entries[start : start + MANY])], deadline)
            if not isinstance(reply, list):
                raise self._astray()
            found += reply
        if len(found) != len(entries):
            raise self._astray()
        return found

    def look(self, keys: Sequence[CacheKey], token: str, deadline: float | None = None) -> list[bytes | Turn]:
        """The stored data of each key; where there is none, the lease for it if nobody has that. All in one step.

        Args:
            keys, token: what is looked for, at most `MANY`, and what their leases are to be held by.
            deadline: as `fetch` has it.

        Raises:
            StoreAway: it is not known; leases may have been given.
        """
        entries = [key.entry for key in keys]
        if self.writing.state == OPEN:  # nothing would end the leases
            return [Turn.UNLEASED if data is None else data for data in self.fetch(entries, deadline)]
        names = [*entries, *(key.lease for key in keys)]
        (reply,) = self._read([_eval(_LOOK, names, token, round(self._lease * 1000))], deadline, _LOOK)
        if not isinstance(reply, list) or len(reply) != len(keys):
            raise self._astray()
        try:
            return [one if isinstance(one, bytes) else Turn(one) for one in reply]
        except ValueError:
            raise self._astray() from None

    def write(self, writes: Sequence[Write]) -> list[bool]:
        """Carry these out in order; whether each was.

        Raises:
            StoreAway: none of them was, or it is not known.
        """
        if self.reading.state != CLOSED:  # a look-up will find out when it is back
            raise LeftAlone("left alone")
        if not self.writing.allows():
            raise LeftAlone("writes left alone")
        commands = [self._command(write) for write in writes]
        try:
            replies = self._links.ask(commands, time.monotonic() + WRITE_SECONDS)
            for place, reply in enumerate(replies):
                if _unknown(reply):
                    script = _KEEP if isinstance(writes[place], Keep) else _RELEASE
                    (replies[place],) = self._links.ask(
                        [("EVAL", script.text, *commands[place][2:])], time.monotonic() + WRITE_SECONDS
                    )
        except LinkFailed as error:
            self.reading.failed(str(error))
            self.writing.failed(str(error))
            raise StoreAway(str(error)) from None
        refused = next((reply for reply in replies if isinstance(reply, hiredis.ReplyError)), None)
        if refused is None:
            self.writing.succeeded()
        else:
            self.writing.failed(_code(refused))
        return [not isinstance(reply, hiredis.ReplyError) for reply in replies]

    def close(self) -> None:
        """Let go of the connections."""
        self._links.close()

    def _read(self, commands: Sequence[Command], deadline: float | None, script: Script | None = None) -> list[Any]:
        if not self.reading.allows():
            raise LeftAlone("left alone")
        deadline = self.deadline() if deadline is None else deadline
        try:
            replies = self._links.ask(commands, deadline)
            if script is not None and _unknown(replies[0]):
                replies = self._links.ask([("EVAL", script.text, *commands[0][2:])], deadline)
        except LinkFailed as error:
            self.reading.failed(str(error))
            raise StoreAway(str(error)) from None
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                self.reading.failed(_code(reply))
                raise StoreAway(_code(reply))
        self.reading.succeeded()
        return replies

    def _astray(self) -> StoreAway:
        """What to raise at an answer that the command cannot have."""
        self.reading.failed("strange answer")
        return StoreAway("strange answer")

    def _command(self, write: Write) -> Command:
        match write:
            case Keep(key, data, token):
                ttl = self._ttl * (1 - TTL_JITTER * random.random())  # noqa: S311
                return _eval(_KEEP, [key.entry, key.lease], data, max(1, round(ttl * 1000)), token)
            case Release(key, token):
                return _eval(_RELEASE, [key.lease], token)
            case Drop(key):
                return ("DEL", key.entry)


def _eval(script: Script, keys: Sequence[str], *arguments: str | bytes | int) -> Command:
    return ("EVALSHA", script.sha, len(keys), *keys, *arguments)


def _unknown(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


def _code(error: Any) -> str:
    """The first word of an error reply (`OOM`, `NOAUTH`): the rest may repeat what was sent."""
    word = str(error).partition(" ")[0]
    return word if word.isascii() and word.isalpha() and word.isupper() else "error reply"
