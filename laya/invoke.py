"""One call of one hook method: plain or coroutine, with or without a time limit, alone or beside others.

Nothing here knows what an event means or what a failure leads to; that is `laya.hooks`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_serials_held: ContextVar[frozenset[int]] = ContextVar("laya_serials_held", default=frozenset())


class Serial:
    """A re-entrant lock whose holder is a context, not a thread.

    A timed hook runs in a thread of its own, in a copy of the caller's contextvars. Were the holder a thread, a hook
    that calls back into the same Agent would wait for itself.
    """

    def __init__(self) -> None:
        """Make a lock that nobody holds."""
        self._lock = threading.Lock()

    @contextmanager
    def held(self, deadline: float | None) -> Iterator[None]:
        """Hold the lock in the block; TimeoutError when it is not had by `deadline` (`time.monotonic()` seconds)."""
        before = _serials_held.get()
        if id(self) in before:
            yield
            return
        wait = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._lock.acquire(timeout=wait):
            raise TimeoutError("another hook of this object held its turn for too long")
        token = _serials_held.set(before | {id(self)})
        try:
            yield
        finally:
            _serials_held.reset(token)
            self._lock.release()


def invoke(method: Callable[[Any], Any], ctx: Any, *, name: str, timeout: float | None, serial: Serial | None) -> None:
    """Call `method(ctx)`, wait for what it returns if that is awaitable, within `timeout` seconds.

    Raises:
        TimeoutError: the limit passed. A plain method cannot be stopped: its thread runs on, ignored, as a daemon.
    """
    if timeout is None:
        _run(method, ctx, None, serial)
        return
    deadline = time.monotonic() + timeout
    failure: list[BaseException] = []

    def timed() -> None:
        try:
            _run(method, ctx, deadline, serial)
        except BaseException as error:  # noqa: BLE001  # handed to the caller's thread below
            failure.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(timed,), name=f"laya-hook-{name}", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise TimeoutError(f"hook {name} took longer than hooks_timeout={timeout:g} s")
    if failure:
        raise failure[0]


def _run(method: Callable[[Any], Any], ctx: Any, deadline: float | None, serial: Serial | None) -> None:
    if serial is None:
        _finish(method(ctx), deadline)
        return
    with serial.held(deadline):
        _finish(method(ctx), deadline)


def _finish(outcome: Any, deadline: float | None) -> None:
    if inspect.isawaitable(outcome):
        complete_awaitable(outcome, None, deadline)


def complete_awaitable(
    awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop | None = None, deadline: float | None = None
) -> Any:
    """Run `awaitable` to completion from plain code, also from inside a running loop, and return its value.

    Raises:
        RuntimeError: `loop` is the loop of this very thread.
        TimeoutError: `deadline` (`time.monotonic()` seconds) passed; the awaitable was cancelled.
    """

    async def bounded() -> Any:
        if deadline is None:
            return await awaitable
        return await asyncio.wait_for(awaitable, max(0.0, deadline - time.monotonic()))

    here = _running_loop()
    if loop is not None:
        if here is loop:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise RuntimeError(
                "AsyncHook was given the loop of the thread that makes the call, which would wait for itself: "
                "leave loop=None, or call the Agent from another thread"
            )
        return asyncio.run_coroutine_threadsafe(bounded(), loop).result()
    if here is None:
        return asyncio.run(bounded())
    return _in_thread(lambda: asyncio.run(bounded()))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _in_thread(function: Callable[[], Any]) -> Any:
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread below
            failure.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(body,), name="laya-hook-loop", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
