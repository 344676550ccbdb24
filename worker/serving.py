"""The service of a worker: one Router for the process, and every failure as an error that a backend knows.

It is built from settings before the worker takes its first message, and closed after the last. Which messages
are taken is the queue's matter; how a request is answered is the library's.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery import current_task
from celery.exceptions import WorkerShutdown, WorkerTerminate

from hooks import LoadCount
from hooks.scope import Scope, asking
from laya import Router, small
from laya.batching import Batching, DeadlinePassed, PassReport, answer_by
from laya.catalog import DEFAULT_MODELS, canonical_name
from laya.grouping import Request
from laya.hooks import HookRun
from laya.residency import NoRoom
from laya.routing import AnsweredElsewhere, RouteDecision
from producer.checkpoints import CheckpointSource
from producer.errors import (
    CheckpointUnavailable,
    DeadlineExceeded,
    InvalidRequest,
    LayaError,
    PredictionFailed,
)
from producer.handover import arrival
from producer.jsonform import JsonForm
from producer.request import BatchItem, PredictionRequest, check, question_at_fault, route
from worker.control import Orders
from worker.noted import Noted
from worker.passcount import PassCount
from worker.settings import WorkerSettings
from worker.single import SingleOut
from worker.tally import Tally

logger = logging.getLogger(__name__)

# The worker ending itself is no failure of the request at hand.
_ENDING = (WorkerShutdown, WorkerTerminate)

# Neither is that another worker answers it.
_NO_FAILURE = (*_ENDING, AnsweredElsewhere)


class HookNotFound(LookupError):
    """LAYA_HOOKS names something that cannot be imported or called."""


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
        sources = sources_of(settings.checkpoints)
        super().__init__(
            models=sources,
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
            agent_kwargs={
                "batching": self._batching,
            },
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

    @property
    def capacity(self) -> int:
        """How much may be resident."""
        return self._residency.max_loaded

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


class Serving:
    """Answers requests with one Router. Safe to call from many threads."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Make the service; :meth:`start` loads what is to be preloaded."""
        self.settings = settings
        self.router = ServingRouter(settings)
        self.loads = LoadCount()
        self.tally = self.router.tally
        self.passes = PassCount()
        self.router.observe_passes(self.passes.observe)
        self.router.add_hook([self.loads, self.tally, Noted()])
        self.orders = Orders(self.router, self.tally, settings.preloaded)
        self.single_out: Callable[[], SingleOut | None] = lambda: None

    def start(self) -> None:
        """Import what computes, so that it fails here if it is missing, and load the checkpoints of LAYA_PRELOAD.

        Raises:
            ImportError: this environment lacks what a worker needs.
            CheckpointUnavailable: a checkpoint cannot be loaded.
        """
        importlib.import_module("laya.agent")
        for name in self.settings.preloaded:
            started = time.perf_counter()
            self.router.load(name)
            logger.info("Preloaded checkpoint %s in %.1f s", name, time.perf_counter() - started)
        self.router.pin(self.settings.preloaded)
        if any(getattr(hook, "asks_identities", False) for hook in self.router.hooks):
            # Hashing gigabytes takes seconds, which the first request for a checkpoint should not wait for.
            threading.Thread(target=self._foresee, name="laya-identities", daemon=True).start()

    def _foresee(self) -> None:
        for name in self.settings.names:
            self.router.identity(name)

    def close(self) -> None:
        """Let go of every checkpoint; `on_evict` fires for each."""
        self.orders.close()
        try:
            self.router.unload()
        except Exception:
            logger.exception("A hook failed while the checkpoints were let go")

    def predict(self, request: PredictionRequest, deadline: float | None, tenant: str | None = None) -> dict[str, Any]:
        """Answer one request, or raise one of `producer.errors`.

        Args:
            request: as it came, unchecked: a producer may have skipped the checks.
            deadline: Unix time after which nobody wants the answer, or None.
            tenant: whose request it is, None for the deployment's own.
        """
        checked = check(request, JsonForm(self.settings.limits))
        self._check_name(checked)
        check_deadline(deadline)
        try:
            with answer_by(_by_monotonic(deadline)), asking(_scope(checked, tenant)):
                return self.router.predict(checked.state, checked.questions, **checked.router_options)
        except _NO_FAILURE:
            raise
        except BaseException as error:  # a hook may raise anything, and the pool must not die of it
            failure = self._failure(error, checked)
            if failure is error:
                raise
            raise failure from error

    def _failure(self, error: BaseException, request: PredictionRequest) -> LayaError:
        """What a failed request is answered with.

        Raises:
            AnsweredElsewhere: its checkpoint cannot be loaded here, and another worker may be able to.
        """
        if isinstance(error, CheckpointUnavailable):
            came, checkpoint = arrival(), str(error.fields.get("checkpoint"))
            if came is not None and not came.handed and self.router.others_could(checkpoint):
                raise AnsweredElsewhere(checkpoint) from error
        return translated(error, request.questions)

    def predict_many(
        self, items: Sequence[BatchItem], deadline: float | None, tenant: str | None = None
    ) -> list[dict[str, Any]]:
        """Answer checked requests in order, in shared passes; one that fails is an error entry at its place."""
        results: list[dict[str, Any]] = [{}] * len(items)
        good: list[tuple[int, PredictionRequest]] = []
        for place, item in enumerate(items):
            if not isinstance(item, PredictionRequest):
                results[place] = item
                continue
            try:
                self._check_name(item)
            except LayaError as error:
                results[place] = error.as_entry()
            else:
                good.append((place, item))
        check_deadline(deadline)
        if (single := self.single_out()) is not None:
            for place, request in good:
                compute = partial(self._together, [request], deadline, tenant)
                results[place] = single.answer(place, request, compute)
            return results
        for may_be_cached in (True, False):
            alike = [(place, request) for place, request in good if request.may_be_cached is may_be_cached]
            if alike:
                answers = self._together([request for _, request in alike], deadline, tenant)
                for (place, _), answer in zip(alike, answers, strict=True):
                    results[place] = answer
        return results

    def _together(
        self, requests: Sequence[PredictionRequest], deadline: float | None, tenant: str | None
    ) -> list[dict[str, Any]]:
        """The answers of one call of the Router; when it fails, those of its halves, until the failing stand alone."""
        try:
            with answer_by(_by_monotonic(deadline)), asking(_scope(requests[0], tenant)):
                return self.router.predict_batch(
                    [
                        {"state": request.state, "questions": request.questions, **request.router_options}
                        for request in requests
                    ]
                )
        except _NO_FAILURE:
            raise
        except BaseException as error:  # noqa: BLE001 - as above
            # When time is up, it is up for the halves too.
            if len(requests) == 1 or isinstance(error, DeadlinePassed):
                return [self._failure(error, request).as_entry() for request in requests]
            logger.info("A batch of %d failed (%s); answering its halves", len(requests), type(error).__name__)
        half = len(requests) // 2
        return [
            *self._together(requests[:half], deadline, tenant),
            *self._together(requests[half:], deadline, tenant),
        ]

    def _check_name(self, request: PredictionRequest) -> None:
        """Refuse a name that is not registered here. Other requests are routed by the Router."""
        if "model" in request.options or "task" in request.options:
            route(request, self.settings.names, self.settings.default_checkpoint)


def _scope(request: PredictionRequest, tenant: str | None) -> Scope:
    """What hooks may know of a request beside its context."""
    task = current_task
    return Scope(namespace=tenant, store=request.may_be_cached, task_id=task.request.id if task else None)


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


def make_hook(path: str) -> Any:
    """The hook that a dotted path names: what it names is called without arguments.

    Raises:
        HookNotFound: it cannot be imported, is not callable, or fails when called.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise HookNotFound(f"LAYA_HOOKS: {path!r} is no dotted path: write module.Class")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise HookNotFound(f"LAYA_HOOKS: {path!r} cannot be imported: {error}") from error
    try:
        return factory()
    except Exception as error:
        raise HookNotFound(f"LAYA_HOOKS: {path}() failed: {type(error).__name__}: {error}") from error


def check_deadline(deadline: float | None) -> None:
    """Refuse work that nobody waits for any longer.

    Raises:
        DeadlineExceeded: the deadline has passed.
    """
    if deadline is not None and (late := time.time() - deadline) >= 0:
        raise DeadlineExceeded(f"the request reached a worker {late:.1f} s after its time was up", {"late": late})


def _by_monotonic(deadline: float | None) -> float | None:
    """A deadline in Unix time as one on the clock that no administrator sets."""
    return None if deadline is None else time.monotonic() + (deadline - time.time())


def translated(error: BaseException, questions: Mapping[str, Any]) -> LayaError:
    """What went wrong in the library or a hook, as an error that a backend knows.

    A refusal of the library's that names a question is the caller's mistake; everything else is a failure here.
    """
    if isinstance(error, LayaError):
        return error
    message = str(error)
    if isinstance(error, NoRoom):
        return CheckpointUnavailable(message)
    if isinstance(error, DeadlinePassed):
        return DeadlineExceeded(message)
    if isinstance(error, ValueError | TypeError):
        question = question_at_fault(message, questions)
        if question is not None:
            return InvalidRequest(message, {"question": question})
    name = type(error).__name__
    return PredictionFailed(f"{name}: {message}" if message else name, {"cause": name})
