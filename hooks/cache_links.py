"""Connections to the cache's server for callers that have a deadline of their own, in milliseconds.

A caller never opens a connection: looking up a name, TLS and authentication can take longer than all the time there
is, so that a thread beside it does this, and the caller goes without if it is not done in time. What is asked over a
connection is the store's matter.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import RedisError

OPEN_SECONDS: Final = 5.0
"""For each step of opening a connection; nobody waits for it."""

LIMIT: Final = 64
"""Connections at most: one for each thread of a worker that looks something up, and some for the writer."""

_CHUNK = 65_536

Command = tuple[str | bytes | int, ...]
_UNFINISHED = object()


class LinkFailed(Exception):
    """The server did not answer in time, or not in its own language, or not at all. Holds no text of either side."""


class Link:
    """One connection, used by one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        """Open it, with all that its URL says: TLS, user and password, database."""
        connection.connect()  # type: ignore[no-untyped-call]
        self._connection = connection  # closes with us
        # Read from here on by ourselves: redis-py has a time limit for each piece of an answer, not for the whole.
        self._socket = cast("socket.socket", connection._sock)
        self._reader = hiredis.Reader(notEnoughData=_UNFINISHED)
        self._buffer = bytearray(_CHUNK)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def ask(self, commands: Sequence[Command], deadline: float) -> list[Any]:
        """The replies to these commands, in order; an error reply is a `hiredis.ReplyError` at its place.

        Raises:
            LinkFailed: not all of them came by the deadline (`time.monotonic()` seconds). The link is of no more use.
        """
        try:
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(b"".join(map(_packed, commands)))
            return [self._reply(deadline) for _ in commands]
        except (OSError, ValueError, hiredis.HiredisError) as error:
            self.close()
            raise LinkFailed(type(error).__name__) from None

    def _reply(self, deadline: float) -> Any:
        while (reply := self._reader.gets()) is _UNFINISHED:
            self._socket.settimeout(_left(deadline))
            count = self._socket.recv_into(self._buffer)
            if not count:
                raise ConnectionResetError
            self._reader.feed(self._buffer, 0, count)  # type: ignore[arg-type]  # any buffer will do
        return reply

    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody asked for, the end of the connection included."""
        if isinstance(self._socket, ssl.SSLSocket):
            return True  # TLS sends messages of its own; the next answer will show what they were
        return not self._poll.poll(0)

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(RedisError, OSError):
            self._connection.disconnect()  # type: ignore[no-untyped-call]


class Links:
    """Open connections to one server, the last used first. Safe to use from many threads."""

    def __init__(self, url: str, limit: int = LIMIT) -> None:
        """Take a URL as redis-py reads it; nothing is opened yet.

        Raises:
            ValueError: it is no URL of a Redis server.
        """
        self._open_one = opener(url)
        self._limit = limit
        self._changed = threading.Condition()
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._idle: list[Link] = []
        self._count = 0  # idle, lent and being opened
        self._failures = 0
        self._generation = 0
        self._reason = ""

    def ask(self, commands: Sequence[Command], deadline: float) -> list[Any]:
        """The replies to these commands over some link.

        Raises:
            LinkFailed: not by the deadline.
        """
        link, generation = self._borrow(deadline)
        try:
            replies = link.ask(commands, deadline)
        except BaseException:
            self._forget(generation)
            link.close()
            raise
        self._give_back(link, generation)
        return replies

    def close(self) -> None:
        """End all connections that are not in use."""
        self._drop_idle(self._generation)

    def _borrow(self, deadline: float) -> tuple[Link, int]:
        if self._process != os.getpid():  # a fork: these connections are the parent's
            self._changed = threading.Condition()
            self._reset()
        while True:
            with self._changed:
                failures = self._failures
                if not self._idle and self._count < self._limit:
                    self._count += 1
                    opening = (self._generation,)
                    threading.Thread(target=self._open, args=opening, name="laya-cache-link", daemon=True).start()
                while not self._idle:
                    if self._failures != failures:
                        raise LinkFailed(self._reason)
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                        raise LinkFailed("no connection in time")
                link, generation = self._idle.pop(), self._generation
            if link.is_quiet():
                return link, generation
            link.close()
            self._forget(generation)

    def _open(self, generation: int) -> None:
        try:
            link = self._open_one()
        except Exception as error:  # noqa: BLE001  # names, TLS, passwords: whatever it was, there is no link
            with self._changed:
                self._count -= 1
                if generation == self._generation:  # else it began before the server went away, and says nothing of now
                    self._failures += 1
                    self._reason = type(error).__name__
                    self._changed.notify_all()
            return
        self._give_back(link, generation)

    def _give_back(self, link: Link, generation: int) -> None:
        with self._changed:
            if generation == self._generation:
                self._idle.append(link)
                self._changed.notify()
                return
            self._count -= 1
        link.close()

    def _forget(self, generation: int) -> None:
        """Let go of a link that failed, and of those that were idle beside it: a server that went away closed them."""
        with self._changed:
            self._count -= 1
        self._drop_idle(generation)

    def _drop_idle(self, generation: int) -> None:
        with self._changed:
            if generation != self._generation:
                return
            self._generation += 1
            dropped, self._idle = self._idle, []
            self._count -= len(dropped)
        for link in dropped:
            link.close()


def opener(url: str) -> Callable[[], Link]:
    """What opens a connection to the server of a URL.

    Raises:
        ValueError: it is none: `redis://`, `rediss://` or `unix://`.
    """
    options: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
    kind = options.pop("connection_class", None)
    if kind is None:
        kind = UnixDomainSocketConnection if "path" in options else Connection
    elif not issubclass(kind, Connection | SSLConnection | UnixDomainSocketConnection):
        raise ValueError("not a URL of one Redis server")
    for name in ("max_connections", "timeout"):  # of redis-py's pools
        options.pop(name, None)
    settings = {"protocol": 2, "socket_timeout": OPEN_SECONDS, "socket_connect_timeout": OPEN_SECONDS, **options}
    return lambda: Link(kind(**settings))


def _packed(command: Command) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub says a tuple of one
    return packed


def _left(deadline: float) -> float:
    """Seconds until the deadline; an error when there are none, since a timeout of 0 would mean something else."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
