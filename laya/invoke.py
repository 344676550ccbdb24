"""One call of one hook method: plain or coroutine, with or without a time limit, alone or beside others.

Nothing here knows what an event means or what a failure leads to; that is `laya.hooks`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

LOOP_CHECK_S = 1.0
"""Seconds between looks at whether the loop that a hook waits for still runs."""

_turns: ContextVar[frozenset[object]] = ContextVar("laya_hook_turns", default=frozenset())


class Serial:
    """A re-entrant lock whose holder is a context, not a thread.

    A timed hook runs in a thread of its own, in a copy of the caller's contextvars. Were the holder a thread, a hook
    that calls back into the same Agent would wait for itself.
    """

    def __init__(self) -> None:
        """Make a lock that nobody holds."""
        self._lock = threading.Lock()
        self._turn: object | None = None

    @contextmanager
    def held(self, deadline: float | None) -> Iterator[None]:
        """Hold the lock in the block; TimeoutError when it is not had by `deadline` (`time.monotonic()` seconds)."""
        before = _turns.get()
        # A turn that is over may live on in a context that its hook left behind (a task, a thread): it opens nothing.
        if self._turn in before:
            yield
            return
        wait = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._lock.acquire(timeout=wait):
            raise TimeoutError("another hook of this object held its turn for too long")
        self._turn = object()
        token = _turns.set(before | {self._turn})
        try:
            yield
        finally:
            _turns.reset(token)
            self._turn = None
            self._lock.release()


def invoke(method: Callable[[Any], Any], ctx: Any, deadline: float | None, serial: Serial | None) -> None:
    """Call `method(ctx)` in this thread, and wait for what it returns if that is awaitable.

    Raises:
        TimeoutError: `deadline` (`time.monotonic()` seconds) passed while it waited.
    """
    if serial is None:
        _finish(method(ctx), deadline)
        return
    with serial.held(deadline):
        _finish(method(ctx), deadline)


def invoke_within(timeout: float, method: Callable[[Any], Any], ctx: Any, serial: Serial | None, *, name: str) -> None:
    """Call `method(ctx)` in a thread of its own, and wait for it for `timeout` seconds.

    Raises:
        TimeoutError: the limit passed. A plain method cannot be stopped: its thread runs on, ignored, as a daemon.
    """
    deadline = time.monotonic() + timeout
    failure: list[BaseException] = []

    def timed() -> None:
        try:
            invoke(method, ctx, deadline, serial)
        except BaseException as error:  # noqa: BLE001  # handed to the caller's thread below
            failure.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(timed,), name=f"laya-hook-{name}", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise TimeoutError(f"hook {name} took longer than hooks_timeout={timeout:g} s")
    if not failure:
        return
    if isinstance(failure[0], TimeoutError) and time.monotonic() >= deadline:
        # A coroutine that was cancelled at the limit, or a turn that did not come: the same message as above.
        raise TimeoutError(f"hook {name} took longer than hooks_timeout={timeout:g} s") from failure[0]
    raise failure[0]


def _finish(outcome: Any, deadline: float | None) -> None:
    if outcome is not None and inspect.isawaitable(outcome):  # most return nothing, which is seen at once
        complete_awaitable(outcome, None, deadline)


def complete_awaitable(
    awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop | None = None, deadline: float | None = None
) -> Any:
    """Run `awaitable` to completion from plain code, also from inside a running loop, and return its value.

    Raises:
        RuntimeError: `loop` is the loop of this very thread, or does not run, or stopped before the end.
        TimeoutError: `deadline` (`time.monotonic()` seconds) passed; the awaitable was cancelled.
    """

    async def bounded() -> Any:
        if deadline is None:
            return await awaitable
        return await asyncio.wait_for(awaitable, max(0.0, deadline - time.monotonic()))

    here = _running_loop()
    if loop is not None:
        if here is loop:
            _give_up(awaitable)
            raise RuntimeError(
                "AsyncHook was given the loop of the thread that makes the call, which would wait for itself: "
                "leave loop=None, or call the Agent from another thread"
            )
        if not loop.is_running():
            _give_up(awaitable)
            raise RuntimeError(
                "AsyncHook was given a loop that does not run: run it in another thread, or leave loop=None"
            )
        return _on_loop(bounded(), loop)
    if here is None:
        return asyncio.run(bounded())
    return _in_thread(lambda: asyncio.run(bounded()))


def _on_loop(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    while not concurrent.futures.wait([future], timeout=LOOP_CHECK_S).done:
        if not loop.is_running():
            if not loop.is_closed():
                future.cancel()
            raise RuntimeError("the loop that AsyncHook was given stopped before the hook's coroutine had ended")
    return future.result()


def _give_up(awaitable: Awaitable[Any]) -> None:
    if inspect.iscoroutine(awaitable):
        awaitable.close()


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
