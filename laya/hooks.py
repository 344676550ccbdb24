"""Hooks: what they may look like, which ones a call runs, and what their failures mean.

A hook is any object with at least one of the six event methods. `HookRegistry` is the part that Agent and Router share;
`HookRun` is one call's hooks with its policy. How one hook method is invoked (a timeout, a coroutine, a lock) is
`laya.invoke`'s; when events are fired is `laya.lifecycle`'s.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, TypeAlias, runtime_checkable

from laya.context import PredictContext
from laya.invoke import Serial, complete_awaitable, invoke, invoke_within
from laya.within import within

HOOK_EVENTS: Final = ("on_route", "on_load", "on_evict", "on_predict_start", "on_error", "on_predict_end")
"""Every event, in the order in which one call can meet them."""

HookCallable: TypeAlias = Callable[[PredictContext], Any]


@runtime_checkable
class Hook(Protocol):
    """Anything with at least one of the six event methods; this protocol names the two that most hooks have."""

    def on_predict_start(self, ctx: PredictContext) -> Any:
        """Before the prediction: rewrite, set budgets, skip, or raise to refuse the call."""

    def on_predict_end(self, ctx: PredictContext) -> Any:
        """After the prediction, also when it failed (`ctx.error`)."""


class BaseHook:
    """A hook that does nothing: override the events that you need. Methods may be coroutines."""

    raise_errors: bool | None = None
    """What this hook's own failures do: True raises, False warns, None follows the call's `hooks_raise`."""

    def on_route(self, ctx: PredictContext) -> Any:
        """After routing, before any checkpoint is loaded; assign `ctx.decision` to send the request elsewhere."""

    def on_load(self, ctx: PredictContext) -> Any:
        """After the Router built `ctx.model`, outside its lock; raising fails the call that needed the checkpoint."""

    def on_evict(self, ctx: PredictContext) -> Any:
        """After the Router let go of `ctx.model`, outside its lock and before the `on_load` that displaced it."""

    def on_predict_start(self, ctx: PredictContext) -> Any:
        """Before tokenisation: rewrite states, questions or budgets, `ctx.skip(...)`, or raise to refuse the call."""

    def on_error(self, ctx: PredictContext) -> Any:
        """When the call failed, `ctx.error` set; raising here changes nothing for the caller."""

    def on_predict_end(self, ctx: PredictContext) -> Any:
        """Last, exactly once for every started call; raising fails a call that had succeeded."""


class AsyncHook(BaseHook):
    """Run the coroutine methods of `hook`, on `loop` when one is given, and wait for each of them.

    Without a loop each coroutine runs to completion where the hook is called (in a loop of its own, in a thread of its
    own when a loop is already running here). With a loop, the loop must be running in another thread.

    Raises:
        RuntimeError: on an event, when the call comes from the given loop's own thread, which would wait for itself.
    """

    def __init__(self, hook: Any, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Wrap `hook`, any object with at least one event method."""
        (self.hook,) = normalise_hooks(hook)
        self.loop = loop
        self.raise_errors = getattr(hook, "raise_errors", None)

    def on_route(self, ctx: PredictContext) -> None:
        """Forward `on_route`."""
        self._forward("on_route", ctx)

    def on_load(self, ctx: PredictContext) -> None:
        """Forward `on_load`."""
        self._forward("on_load", ctx)

    def on_evict(self, ctx: PredictContext) -> None:
        """Forward `on_evict`."""
        self._forward("on_evict", ctx)

    def on_predict_start(self, ctx: PredictContext) -> None:
        """Forward `on_predict_start`."""
        self._forward("on_predict_start", ctx)

    def on_error(self, ctx: PredictContext) -> None:
        """Forward `on_error`."""
        self._forward("on_error", ctx)

    def on_predict_end(self, ctx: PredictContext) -> None:
        """Forward `on_predict_end`."""
        self._forward("on_predict_end", ctx)

    def _forward(self, event: str, ctx: PredictContext) -> None:
        method = getattr(self.hook, event, None)
        if method is not None:
            outcome = method(ctx)
            if inspect.isawaitable(outcome):
                complete_awaitable(outcome, self.loop)


class _Callables:
    """A hook made of the plain functions that were given as `on_predict_start=` or `on_predict_end=`."""

    def __init__(self, event: str, function: HookCallable) -> None:
        setattr(self, event, function)
        self.name: str = getattr(function, "__qualname__", type(function).__name__)


def normalise_hooks(
    hooks: Any = None,
    on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
    on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
) -> tuple[Any, ...]:
    """The hooks of one `hooks=` argument in order, the plain functions after them.

    Raises:
        TypeError: a class, a bare function, an object without any event, an event that is not callable.
    """
    entries = _entries(hooks)
    for entry in entries:
        _check_hook(entry)
    named = (("on_predict_start", on_predict_start), ("on_predict_end", on_predict_end))
    return (*entries, *(_Callables(event, each) for event, given in named for each in _functions(event, given)))


def _entries(hooks: Any) -> Sequence[Any]:
    if hooks is None:
        return ()
    # A hook may itself be a sequence, such as a list that records what it sees: its events decide.
    is_sequence = isinstance(hooks, Sequence) and not isinstance(hooks, str | bytes) and not _events_of(hooks)
    return hooks if is_sequence else (hooks,)


def _events_of(hook: Any) -> list[str]:
    return [event for event in HOOK_EVENTS if getattr(hook, event, None) is not None]


def _check_hook(hook: Any) -> None:
    if isinstance(hook, type):
        raise TypeError(f"a hook is an object, not a class: pass {hook.__name__}() instead of {hook.__name__}")
    events = _events_of(hook)
    if not events:
        raise TypeError(
            f"a hook has at least one of {', '.join(HOOK_EVENTS)}; {type(hook).__name__} has none of them "
            "(pass a plain function as on_predict_start= or on_predict_end=)"
        )
    for event in events:
        if not callable(getattr(hook, event)):
            raise TypeError(
                f"{type(hook).__name__}.{event} must be callable, got {type(getattr(hook, event)).__name__}"
            )


def _functions(event: str, given: Any) -> Sequence[HookCallable]:
    functions = () if given is None else given if isinstance(given, list | tuple) else (given,)
    for function in functions:
        if not callable(function):
            raise TypeError(f"{event}= takes a callable of the context, got {type(function).__name__}")
    return functions


def check_hooks_timeout(timeout: Any) -> float | None:
    """`timeout` in seconds as a float, or None; ValueError unless it is a positive, finite number."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"hooks_timeout must be a positive, finite number of seconds or None; got {timeout!r}")
    return float(timeout)


# --- process-wide default hooks ---

_defaults: tuple[Any, ...] = ()
_defaults_lock = threading.Lock()
_router_fired_defaults: ContextVar[bool] = ContextVar("laya_router_fired_defaults", default=False)


def set_default_hooks(hooks: Any) -> None:
    """Replace the process-wide default hooks, which run before installed and per-call hooks."""
    global _defaults  # noqa: PLW0603  # replaced whole, so that a call under way keeps the list that it began with
    normal = normalise_hooks(hooks)
    with _defaults_lock:
        _defaults = normal


def add_default_hook(hook: Any) -> None:
    """Add one process-wide default hook after those already there."""
    global _defaults  # noqa: PLW0603  # as above
    normal = normalise_hooks(hook)
    with _defaults_lock:
        _defaults = (*_defaults, *normal)


def clear_default_hooks() -> None:
    """Remove every process-wide default hook."""
    set_default_hooks(None)


def default_hooks() -> list[Any]:
    """A copy of the process-wide default hooks, in order."""
    return list(_defaults)


def defaults_already_fired() -> within[bool]:
    """Mark the Agent call in this block as part of a Router call, so that default hooks do not fire a second time."""
    return within(_router_fired_defaults, True)


# --- the hooks of one call ---


@dataclass(frozen=True, slots=True)
class HookRun:
    """The hooks that one call runs, in order, and what their failures and their slowness mean."""

    hooks: tuple[Any, ...]
    raises: bool = True
    timeout: float | None = None
    serial: Serial | None = None

    def fire(self, event: str, ctx: PredictContext) -> None:
        """Run `event` of every hook; the first failure ends it and is raised."""
        for hook in self.hooks:
            self._call(hook, event, ctx)

    def fire_each(self, event: str, ctx: PredictContext) -> None:
        """Run `event` of every hook even when one fails; then raise the first failure."""
        first: BaseException | None = None
        for hook in self.hooks:
            try:
                self._call(hook, event, ctx)
            except BaseException as error:  # noqa: BLE001  # raised below, after every hook has run
                first = first or error
        if first is not None:
            raise first

    def fire_after_failure(self, event: str, ctx: PredictContext, failure: BaseException) -> None:
        """Run `event` of every hook; a failure here becomes a note on `failure`, which it must not hide."""
        for hook in self.hooks:
            try:
                self._call(hook, event, ctx)
            except BaseException as error:  # noqa: BLE001  # told on the failure that comes first
                failure.add_note(f"then hook {_name(hook)}.{event} failed: {error!r}")

    def _call(self, hook: Any, event: str, ctx: PredictContext) -> None:
        method = getattr(hook, event, None)
        # What does nothing is not called: most hooks have one event or two.
        if method is None or getattr(method, "__func__", None) is getattr(BaseHook, event):
            return
        try:
            if self.timeout is None:
                invoke(method, ctx, None, self.serial)
            else:
                invoke_within(self.timeout, method, ctx, self.serial, name=f"{_name(hook)}.{event}")
        except Exception as error:
            own = getattr(hook, "raise_errors", None)
            if self.raises if own is None else own:
                raise
            # No stack level points at one caller: events are fired from many depths.
            warnings.warn(f"hook {_name(hook)}.{event} failed: {error!r}", RuntimeWarning, stacklevel=2)


def _name(hook: Any) -> str:
    return hook.name if isinstance(hook, _Callables) else type(hook).__name__


class HookRegistry:
    """The installed hooks of an Agent or a Router, and their policy. Safe to change while calls are running."""

    hooks_raise: bool
    hooks_timeout: float | None
    hooks_concurrent: bool

    def __init__(
        self,
        hooks: Any = None,
        on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
        on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
        hooks_raise: bool = True,
        hooks_concurrent: bool = True,
        hooks_timeout: float | None = None,
    ) -> None:
        """Install `hooks`, then the plain functions; see `normalise_hooks` and `check_hooks_timeout` for refusals."""
        self.hooks = list(normalise_hooks(hooks, on_predict_start, on_predict_end))
        self.hooks_raise = hooks_raise
        self.hooks_timeout = check_hooks_timeout(hooks_timeout)
        self.hooks_concurrent = hooks_concurrent
        self._hooks_lock = threading.Lock()
        self._hooks_serial = Serial()

    def add_hook(self, hook: Any) -> Self:
        """Install one hook after the others, and return self."""
        added = normalise_hooks(hook)
        with self._hooks_lock:
            self.hooks = [*self.hooks, *added]
        return self

    def remove_hook(self, hook: Any) -> bool:
        """Remove every installation of this very object; True if there was one."""
        with self._hooks_lock:
            kept = [each for each in self.hooks if each is not hook]
            removed = len(kept) < len(self.hooks)
            self.hooks = kept
        return removed

    @contextmanager
    def hooks_installed(self, *hooks: Any) -> Iterator[Self]:
        """Install `hooks` for a with block, and take back exactly those installations at its end."""
        added = normalise_hooks(list(hooks))
        with self._hooks_lock:
            self.hooks = [*self.hooks, *added]
        try:
            yield self
        finally:
            with self._hooks_lock:
                kept = list(self.hooks)
                for hook in reversed(added):
                    # The last installation of the object is this block's; an earlier one belongs to somebody else.
                    place = next((i for i in reversed(range(len(kept))) if kept[i] is hook), None)
                    if place is not None:
                        del kept[place]
                self.hooks = kept

    def hook_run(
        self,
        hooks: Any = None,
        on_predict_start: HookCallable | Sequence[HookCallable] | None = None,
        on_predict_end: HookCallable | Sequence[HookCallable] | None = None,
        hooks_raise: bool | None = None,
        hooks_timeout: float | None = None,
    ) -> HookRun:
        """What one call runs: defaults, installed, per call, in this order; its own policy, else this object's."""
        per_call = normalise_hooks(hooks, on_predict_start, on_predict_end)
        timeout = check_hooks_timeout(hooks_timeout)
        defaults = () if _router_fired_defaults.get() else _defaults
        return HookRun(
            hooks=(*defaults, *self.hooks, *per_call),
            raises=self.hooks_raise if hooks_raise is None else hooks_raise,
            timeout=self.hooks_timeout if timeout is None else timeout,
            serial=None if self.hooks_concurrent else self._hooks_serial,
        )


def nested_calls_fire_defaults() -> within[bool]:
    """Inside an Agent call, let calls that its hooks make to other Agents and Routers fire the defaults again."""
    return within(_router_fired_defaults, False)
