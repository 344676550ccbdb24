"""The service of a worker: one Router for the process, and every failure as an error that a backend knows.

It is built from settings before the worker takes its first message, and closed after the last. Which messages
are taken is the queue's matter; what the Router holds and runs is `worker.serving_router`'s.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery.exceptions import WorkerShutdown, WorkerTerminate

from hooks import LoadCount
from hooks.scope import Scope, asking
from laya.batching import DeadlinePassed, answer_by
from laya.residency import NoRoom
from laya.routing import AnsweredElsewhere
from producer.errors import (
    CheckpointUnavailable,
    DeadlineExceeded,
    Entry,
    InvalidRequest,
    LayaError,
    PredictionFailed,
)
from producer.handover import arrival
from producer.jsonform import JsonForm
from producer.request import BatchItem, PredictionRequest, question_at_fault, route
from producer.request_checks import check
from producer.served import notes
from worker.clock import clock
from worker.control import Orders
from worker.noted import Noted
from worker.passcount import PassCount
from worker.serving_router import ServingRouter
from worker.settings import WorkerSettings
from worker.single import SingleOut

logger = logging.getLogger(__name__)

# The worker ending itself is no failure of the request at hand.
_ENDING = (WorkerShutdown, WorkerTerminate)

# Neither is that another worker answers it.
_NO_FAILURE = (*_ENDING, AnsweredElsewhere)


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

    def prepare(self) -> None:
        """Import what computes, so that it fails here if it is missing, and what the checkpoints of LAYA_PRELOAD take.

        Raises:
            ImportError: this environment lacks what a worker needs.
        """
        importlib.import_module("laya.agent")
        self.router.import_kinds(self.settings.preloaded)

    def start(self) -> None:
        """Load the checkpoints of LAYA_PRELOAD; :meth:`prepare` comes first.

        Raises:
            CheckpointUnavailable: a checkpoint cannot be loaded.
        """
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

        Raises:
            AnsweredElsewhere: another worker is to answer it.
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
        """Answer checked requests in order, in shared passes; one that fails is an error entry at its place.

        Raises:
            DeadlineExceeded: nobody waits for them any longer.
        """
        check_deadline(deadline)
        results: list[dict[str, Any]] = [{}] * len(items)
        good: list[tuple[int, PredictionRequest]] = []
        for place, item in enumerate(items):
            if not isinstance(item, PredictionRequest):
                results[place] = item
            elif (refusal := self._refusal(item)) is not None:
                results[place] = refusal
            else:
                good.append((place, item))
        if (single := self.single_out()) is not None:
            for place, request in good:
                compute = partial(self._together, [request], deadline, tenant)
                results[place] = single.answer(place, request, compute)
            return results
        for may_be_cached in (True, False):  # hooks are told once a call, so all of a call must be alike
            alike = [(place, request) for place, request in good if request.may_be_cached is may_be_cached]
            if alike:
                answers = self._together([request for _, request in alike], deadline, tenant)
                for (place, _), answer in zip(alike, answers, strict=True):
                    results[place] = answer
        return results

    def _refusal(self, request: PredictionRequest) -> Entry | None:
        """The error entry of a request whose checkpoint is not registered here, else None."""
        try:
            self._check_name(request)
        except LayaError as error:
            return error.as_entry()
        return None

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
        except BaseException as error:  # noqa: BLE001 - as in `predict`
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
    taken = notes()
    return Scope(namespace=tenant, store=request.may_be_cached, task_id=taken.task_id if taken else None)


def check_deadline(deadline: float | None) -> None:
    """Refuse work that nobody waits for any longer.

    Raises:
        DeadlineExceeded: the deadline has passed.
    """
    if deadline is not None and (late := clock.now() - deadline) >= 0:
        raise DeadlineExceeded(f"the request reached a worker {late:.1f} s after its time was up", {"late": late})


def _by_monotonic(deadline: float | None) -> float | None:
    """A deadline in Unix time as one on the clock that no administrator sets."""
    return None if deadline is None else time.monotonic() + (deadline - clock.now())


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
