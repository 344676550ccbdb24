"""What an operator can make a running worker do: load a checkpoint, unload one. `celery -A worker control load NAME`.

A command is answered at once and carried out in a thread of its own: Celery runs commands in the thread that takes
messages. What came of it is seen in `inspect resident`. With LAYA_REMOTE_CONTROL=0 a worker obeys no command that
changes anything, Celery's own included.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NotRequired, Protocol, TypedDict

from celery import bootsteps
from celery.worker.control import Panel, control_command

from worker.tally import Tally

logger = logging.getLogger(__name__)

HARMLESS: Final = {"heartbeat", "enable_events"}
"""Commands of the kind `control` that change nothing an operator would miss."""

NOT_ONLY_LOOKING: Final = {"objgraph", "memdump", "memsample"}
"""Commands of the kind `inspect` that write a file or show what is in memory."""


class Order(TypedDict):
    """The answer to a command: `ok` says what happens now, or `error` why nothing does, and `type` what kind it is.

    `asked` is the worker's Unix time; a failure in `inspect resident` that is younger belongs to this order.
    """

    ok: NotRequired[str]
    error: NotRequired[str]
    type: NotRequired[str]
    checkpoint: NotRequired[str]
    asked: NotRequired[float]


class Holder(Protocol):
    """What orders are carried out on: a worker's Router."""

    @property
    def loaded(self) -> list[str]:
        """Names of the resident checkpoints."""

    def resolve(self, name: str) -> str:
        """The registered name."""

    def load_anew(self, name: str) -> Any:
        """Load a checkpoint, also where that failed a moment ago."""

    def unload(self, name: str | None = None) -> None:
        """Let go of a checkpoint."""


class Orders:
    """An operator's loads and unloads, one after another in a thread of their own."""

    def __init__(self, router: Holder, tally: Tally, pinned: Sequence[str]) -> None:
        """Take what to load and unload, where to note it, and what may only be unloaded by force."""
        self._router = router
        self._tally = tally
        self._pinned = frozenset(pinned)
        self._lock = threading.Lock()
        self._pending: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="laya-orders")

    def load(self, name: str) -> Order:
        """Begin to load a registered checkpoint."""
        try:
            checkpoint = self._router.resolve(name)
        except ValueError as error:
            return Order(error=str(error), type="UnknownCheckpoint")
        if checkpoint in self._router.loaded:
            return Order(ok="resident", checkpoint=checkpoint)
        self._begin(checkpoint, self._load)
        return Order(ok="loading", checkpoint=checkpoint, asked=self._tally.now())

    def unload(self, name: str, *, force: bool) -> Order:
        """Begin to let go of a checkpoint; what works with it goes on to its end."""
        try:
            checkpoint = self._router.resolve(name)
        except ValueError as error:
            return Order(error=str(error), type="UnknownCheckpoint")
        if checkpoint not in self._router.loaded:
            return Order(ok="not resident", checkpoint=checkpoint)
        if checkpoint in self._pinned and not force:
            message = f"{checkpoint!r} is pinned by LAYA_PRELOAD here: unload it with force, or change the setting"
            return Order(error=message, type="Pinned", checkpoint=checkpoint)
        self._begin(checkpoint, self._unload)
        return Order(ok="unloading", checkpoint=checkpoint, asked=self._tally.now())

    def close(self) -> None:
        """Finish the order at work, and forget those that wait."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _begin(self, checkpoint: str, carry_out: Callable[[str], None]) -> None:
        with self._lock:
            if checkpoint in self._pending:
                return
            self._pending.add(checkpoint)
        self._thread.submit(self._carry_out, checkpoint, carry_out)

    def _carry_out(self, checkpoint: str, what: Callable[[str], None]) -> None:
        try:
            what(checkpoint)
        except Exception as error:  # noqa: BLE001 - told in the answer to `inspect resident`
            logger.warning("An operator's order about checkpoint %s failed: %s", checkpoint, error)
        finally:
            with self._lock:
                self._pending.discard(checkpoint)

    def _load(self, checkpoint: str) -> None:
        logger.info("Loading checkpoint %s: an operator asked for it", checkpoint)
        with self._tally.loading(checkpoint):
            self._router.load_anew(checkpoint)

    def _unload(self, checkpoint: str) -> None:
        logger.info("Unloading checkpoint %s: an operator asked for it", checkpoint)
        self._router.unload(checkpoint)


@control_command(args=[("name", str)], signature="NAME")  # type: ignore[untyped-decorator]
def load(state: Any, name: str, **_: Any) -> Order:
    """Load a registered checkpoint; `inspect resident` tells when it is there."""
    orders: Orders = state.app.service.orders
    return orders.load(name)


@control_command(args=[("name", str), ("force", str)], signature="NAME [force]")  # type: ignore[untyped-decorator]
def unload(state: Any, name: str, force: str | bool | None = None, **_: Any) -> Order:
    """Let go of a checkpoint; of one that LAYA_PRELOAD pins only with `force`."""
    orders: Orders = state.app.service.orders
    return orders.unload(name, force=force in {"force", "1", "true", True})


class ControlStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Turns off what changes a worker, where LAYA_REMOTE_CONTROL says so, before the first command is read."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Replace the handlers of this process."""
        if not parent.app.settings.remote_control:
            only_look()


def only_look() -> None:
    """Leave this process with the commands that change nothing; the others are answered with a refusal."""
    for name, about in Panel.meta.items():
        looks = about.type == "inspect" and name not in NOT_ONLY_LOOKING
        if not looks and name not in HARMLESS:
            Panel.data[name] = _refusal(name)
    hello = Panel.data["hello"]
    # A worker that greets another also hands over which tasks are revoked.
    Panel.data["hello"] = lambda state, from_node, **_: hello(state, from_node)


def _refusal(name: str) -> Callable[..., Order]:
    def refuse(_state: Any, **_: Any) -> Order:
        logger.warning("Refused the control command %s: LAYA_REMOTE_CONTROL is off", name)
        return Order(error=f"{name!r} is turned off on this worker by LAYA_REMOTE_CONTROL", type="TurnedOff")

    return refuse
