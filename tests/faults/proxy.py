"""A TCP proxy between a client and its server that can be slow, go silent, or cut what passes through it.

A silent connection is a half-open one: it stays open on both sides, what is sent into it is swallowed, and no end of
it is ever seen. It stays silent when the proxy passes on again, as one does whose router has forgotten it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

CHUNK = 1 << 16


class _Link:
    """One connection through the proxy."""

    def __init__(self, writers: list[asyncio.StreamWriter]) -> None:
        self.writers = writers
        self.silent = False

    def reset(self) -> None:
        """End both sides at once, without a goodbye."""
        for writer in self.writers:
            plug = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Listens on a loopback port and passes on to another, in a thread of its own; a context manager."""

    def __init__(self, target: int) -> None:
        """Pass on to `target`, a loopback port; nothing listens yet."""
        self.port = 0
        self.connections = 0
        self._target = target
        self._links: set[_Link] = set()
        self._silent = False
        self._delay = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        """What a client connects to instead of the server."""
        return f"redis://127.0.0.1:{self.port}/0"

    def forward(self) -> None:
        """Pass on at once: new connections from now on, and those that were not silent."""
        self._do(self._set, silent=False, delay=0.0)

    def slow(self, seconds: float) -> None:
        """Hold every piece of data back for so long, each way."""
        self._do(self._set, silent=False, delay=seconds)

    def silence(self) -> None:
        """Swallow everything from now on, on the connections that there are and on those to come."""
        self._do(self._set, silent=True, delay=0.0)

    def cut(self) -> None:
        """End every connection that there is; new ones are served."""
        self._do(self._cut)

    def __enter__(self) -> Self:
        """Start to listen."""
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cut everything and end."""
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(10)

    # --- in the loop's thread ---

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            self._cut()
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _end(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = _Link([writer])
        self._links.add(link)
        try:
            if self._silent:  # whoever connects is let in by the network, and hears nothing
                link.silent = True
                await self._swallow(reader)
                return
            try:
                back, forth = await asyncio.open_connection("127.0.0.1", self._target)
            except OSError:
                return
            link.writers.append(forth)
            await asyncio.gather(self._pump(link, reader, forth), self._pump(link, back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._links.discard(link)
            link.reset()

    @staticmethod
    async def _swallow(reader: asyncio.StreamReader) -> None:
        while await reader.read(CHUNK):
            pass

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)
            if not link.silent:
                writer.write(data)
                await writer.drain()
        if link.silent:  # the other side must not learn of it
            await asyncio.Event().wait()
        writer.close()

    def _set(self, *, silent: bool, delay: float) -> None:
        self._silent, self._delay = silent, delay
        if silent:
            for link in self._links:
                link.silent = True

    def _cut(self) -> None:
        for link in tuple(self._links):
            link.reset()

    def _do(self, what: Callable[..., None], **options: Any) -> None:
        async def run() -> None:
            what(**options)

        work: Coroutine[Any, Any, None] = run()
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)
