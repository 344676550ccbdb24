"""The Router of a worker, made from its settings: the registered checkpoints, the hooks of LAYA_HOOKS, shared passes.

It adds to the library's what workers tell each other and operators: what is being built, what is pinned, what a load
took, and which request belongs to another worker. How a request and its failure are answered is `worker.serving`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from laya import Router, small
from laya.batching import Batching, PassReport
from laya.catalog import DEFAULT_MODELS, canonical_name
from laya.grouping import Request
from laya.hooks import HookRun
from laya.routing import AnsweredElsewhere, RouteDecision
from producer.checkpoints import CheckpointSource
from producer.errors import CheckpointUnavailable
from producer.handover import arrival
from worker.configured_hooks import make_hook
from worker.settings import WorkerSettings
from worker.tally import Tally


class ServingRouter(Router):
    """A Router that knows the registered checkpoints and no others, and says which one it could not load.

    Attributes:
        load_seconds: what the latest load of each checkpoint took.
        goes_elsewhere: whether a message that came by a queue should be answered by another worker, as its checkpoint
            is not resident here.
        others_could: whether another worker may be able to load what could not be loaded here.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        """Make the Router of a worker's settings; nothing is loaded yet."""
        self._served = settings.names
        self._pass_observers: list[Callable[[PassReport], None]] = []
        self.tally = Tally()
        self._batching = Batching(
            max_batch_tokens=settings.max_batch_tokens,
            batch_wait_ms=settings.batch_wait_ms,
            cpu_fallback=settings.cpu_fallback,
            observe=self._tell_of_pass,
        )
        super().__init__(
            models=sources_of(settings.checkpoints),
            device=settings.device,
            revisions={
                checkpoint.name: checkpoint.revision
                for checkpoint in settings.checkpoints
                if checkpoint.revision is not None
            },
            max_loaded=settings.places,
            max_memory=settings.memory,
            default=settings.default_checkpoint,
            hooks=[make_hook(path) for path in settings.hooks],
            agent_kwargs={"batching": self._batching},
            defer_load=True,
            prefer_resident=True,
            evict_first=True,
        )
        # A hook may want to know of passes too.
        self._pass_observers += [hook.observe_pass for hook in self.hooks if hasattr(hook, "observe_pass")]
        self.load_seconds: dict[str, float] = {}
        self.goes_elsewhere: Callable[[str, str], bool] = lambda _checkpoint, _queue: False
        self.others_could: Callable[[str], bool] = lambda _checkpoint: False

    @property
    def computing_s(self) -> float:
        """Seconds for which the forward pass under way has gone on; 0 without one."""
        return self._batching.computing_s

    @property
    def building(self) -> list[str]:
        """Checkpoints that are being loaded, or wait for their turn."""
        return self._residency.building

    @property
    def capacity(self) -> int:
        """How much may be resident: a number of checkpoints, or bytes."""
        return self._residency.max_loaded

    @property
    def sizes(self) -> dict[str, int]:
        """Resident checkpoint to what it takes of the capacity, least recently used first."""
        return self._residency.sizes

    @property
    def pinned(self) -> frozenset[str]:
        """Checkpoints that are never evicted."""
        return self._residency.pinned

    def pin(self, names: Sequence[str]) -> None:
        """Never evict these."""
        self._residency.pinned = frozenset(names)

    def rank_by(self, ranks: Callable[[], Mapping[str, int]]) -> None:
        """Ask this which residents go first when a load needs room; see `laya.residency.Residency`."""
        self._residency.ranks = ranks

    def observe_passes(self, observer: Callable[[PassReport], None]) -> None:
        """Tell this of every forward pass, in the device's thread."""
        self._pass_observers.append(observer)

    def _tell_of_pass(self, report: PassReport) -> None:
        for observer in self._pass_observers:
            observer(report)

    def _route(self, request: Request, run: HookRun, run_id: str) -> RouteDecision:
        decision = super()._route(request, run, run_id)
        came = arrival()
        if came is not None and not came.handed:
            checkpoint = self.resolve(decision["model"])
            if self.goes_elsewhere(checkpoint, came.queue):
                raise AnsweredElsewhere(checkpoint)
        return decision

    def resolve(self, name: str) -> str:
        """The registered name; the library's built-in ones count only where they are registered."""
        return canonical_name(name, self._served)

    def import_kinds(self, names: Sequence[str]) -> None:
        """Import what loading these checkpoints takes, as far as their files are here; nothing is loaded."""
        from laya.checkpoint import import_kind  # noqa: PLC0415 - torch is imported when it is needed

        for name in names:
            with suppress(OSError, ValueError):  # the load will tell
                directory = self._directory_of(self.resolve(name))
                if directory is not None:
                    import_kind(directory)

    def load_anew(self, name: str) -> Any:
        """Load a checkpoint, also where that failed a moment ago."""
        self._residency.forget_failure(self.resolve(name))
        return self.load(name)

    def _build(self, name: str) -> Any:
        try:
            started = time.monotonic()
            with self.tally.loading(name):
                agent = super()._build(name)
            self.load_seconds[name] = time.monotonic() - started
            return agent
        except Exception as error:
            raise CheckpointUnavailable(
                f"checkpoint {name!r} could not be loaded: {type(error).__name__}: {error}", {"checkpoint": name}
            ) from error


def sources_of(checkpoints: Sequence[CheckpointSource]) -> dict[str, str | tuple[str, str | None]]:
    """The sources as a Router takes them. The small checkpoints are built at need, which can take a minute."""
    built: Mapping[str, str] = {}
    if any(checkpoint.small for checkpoint in checkpoints):
        built = small.checkpoints()
    found: dict[str, str | tuple[str, str | None]] = {}
    for checkpoint in checkpoints:
        if checkpoint.small:
            found[checkpoint.name] = built[checkpoint.name]
        elif checkpoint.source is None:
            found[checkpoint.name] = DEFAULT_MODELS[checkpoint.name]
        elif checkpoint.is_path:
            found[checkpoint.name] = checkpoint.path
        else:
            found[checkpoint.name] = (checkpoint.source, checkpoint.subfolder)
    return found
