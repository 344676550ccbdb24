"""The two tasks, defined once for both sides: checked and routed where they are published, answered by a service.

Everything of Celery's works on them: `delay`, `apply_async`, signatures, links, priorities, countdowns. What
answers is the service that a worker (or `producer.testing`) has put on the app.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery import Task
from celery.result import AsyncResult
from kombu.exceptions import BatchPublishError, OperationalError
from kombu.utils.uuid import uuid

from producer.app import PredictionApp, PredictionService, app
from producer.checkpoints import queue_of
from producer.errors import (
    BrokerUnavailable,
    DeadlineExceeded,
    InvalidRequest,
    PayloadTooLarge,
    PoisonedRequest,
    PredictionFailed,
    UnknownCheckpoint,
)
from producer.handover import may_be_handed_over
from producer.jsonform import JsonForm, size_of
from producer.request import (
    SCHEMA,
    SCHEMA_HEADER,
    PredictionRequest,
    read_batch,
    read_call,
    route,
    shown_options,
    summary,
)
from producer.request_checks import check, check_batch, check_size, check_task_id
from producer.served import noting
from producer.shown import Shown, plain
from producer.tenancy import signed, verified
from producer.tracing import answering, publishing

_ADDRESSED = {"queue", "exchange", "routing_key"}


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked message: its arguments as pure JSON, its checkpoint, and what may be shown of it."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    checkpoint: str
    shown_args: str
    shown_kwargs: str


class PredictionTask(Task):  # type: ignore[misc] # celery has no types
    """A task that is checked, routed and described before it is published."""

    abstract = True
    # The caller's own mistakes are no news to the operator; other errors are logged with their traceback.
    throws = (InvalidRequest, UnknownCheckpoint, PayloadTooLarge, DeadlineExceeded, PoisonedRequest)
    app: PredictionApp

    def submission(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Submission:
        """Check and route a call.

        Raises:
            InvalidRequest, UnknownCheckpoint, PayloadTooLarge: it cannot be asked.
        """
        raise NotImplementedError

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        """Check, route and publish a call; Celery's own options all work.

        Raises:
            InvalidRequest, UnknownCheckpoint, PayloadTooLarge: it cannot be asked; nothing was published.
            QueueFull: as many messages wait for its checkpoint as may; nothing was published.
            BrokerUnavailable: the broker could not be reached within two seconds.
        """
        if not is_eager(self.app):
            return self.publish(args, kwargs, **options)
        submission = self._prepare(args, kwargs, options)
        options.pop("producer", None)
        return self.apply(list(submission.args), dict(submission.kwargs), **options)

    def publish(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        """What `apply_async` does where tasks do not run in this process."""
        submission = self._prepare(args, kwargs, options)
        task_id = options["task_id"] = options.get("task_id") or uuid()
        queue = str(options.get("queue") or options.get("routing_key") or "")
        try:
            with publishing(self.name, task_id, queue, options["headers"]) as options["headers"]:
                return super().apply_async(list(submission.args), dict(submission.kwargs), **options)
        except Exception as error:
            if not is_broker_error(error):
                raise
            raise BrokerUnavailable(f"the request could not be published: {error}") from error

    def _prepare(
        self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, options: dict[str, Any]
    ) -> Submission:
        """The checked call; what goes with it is added to the options."""
        kwargs = dict(kwargs or {})
        tenant = kwargs.pop("tenant", options.pop("tenant", None))
        if options.get("task_id") is not None:
            check_task_id(options["task_id"])
        # In a chain, or as a link, a worker publishes the answer of one task as an argument of the next.
        submission = self.submission([plain(arg) for arg in args or ()], kwargs)
        if not options.keys() & _ADDRESSED:
            options["queue"] = queue_of(submission.checkpoint)
        options["headers"] = {**(options.get("headers") or {}), SCHEMA_HEADER: SCHEMA}
        if tenant is not None:
            options["task_id"] = options.get("task_id") or uuid()
            call = (self.name, options["task_id"], submission.args, submission.kwargs)
            options["headers"] |= signed(tenant, call, self.app.settings)
        options.setdefault("argsrepr", submission.shown_args)
        options.setdefault("kwargsrepr", submission.shown_kwargs)
        return submission

    def service(self) -> PredictionService:
        """What answers in this process.

        Raises:
            PredictionFailed: nothing does; the message says what to start or install.
        """
        if self.app.service is None:
            raise PredictionFailed(
                "this process has no checkpoints to answer with: start a worker (`celery -A worker worker`) and "
                "publish with `.delay`, or install answers with `producer.testing.answering`"
            )
        return self.app.service

    def tenant(self, request: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Whose call the running message is, a request of Celery's; None for the deployment's own.

        Raises:
            InvalidRequest: it names a tenant and is not signed for it.
        """
        return verified(request.headers or {}, (self.name, request.id, args, kwargs), self.app.settings)


class SubmitPrediction(PredictionTask):
    """One request a message."""

    abstract = True

    def submission(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Submission:
        """Check and route `(state, questions, **options)`."""
        settings = self.app.settings
        request = check(read_call(args, kwargs), JsonForm(settings.limits))
        checkpoint = route(request, settings.names, settings.default_checkpoint)["model"]
        check_size(request, settings.max_payload)
        return Submission(
            (request.state, request.questions),
            request.options,
            checkpoint,
            f"{checkpoint} {summary(request)}",
            shown_options(request),
        )


class SubmitPredictions(PredictionTask):
    """Many requests a message, answered together."""

    abstract = True

    def submission(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Submission:
        """Check every request of `(requests)`; a bad one travels as its error and fails no other."""
        settings = self.app.settings
        items = check_batch(read_batch(args, kwargs), settings.limits)
        routes: Counter[str] = Counter()
        requests: list[dict[str, Any]] = []
        for item in items:
            if isinstance(item, PredictionRequest):
                try:
                    routes[route(item, settings.names, settings.default_checkpoint)["model"]] += 1
                    requests.append(item.as_request())
                except (InvalidRequest, UnknownCheckpoint) as error:
                    requests.append(error.as_entry())
            else:
                requests.append(item)
        size_of(requests, settings.max_payload)
        # One message has one queue: that of the checkpoint which answers most of it.
        checkpoint = routes.most_common(1)[0][0] if routes else settings.default_checkpoint
        spread = ", ".join(f"{count} for {name}" for name, count in routes.most_common())
        return Submission((requests,), {}, checkpoint, f"({len(requests)} requests: {spread or 'none'})", "{}")


def register(on: PredictionApp) -> tuple[SubmitPrediction, SubmitPredictions]:
    """Define both tasks on an app."""

    @on.task(base=SubmitPrediction, bind=True, name="laya.submit_prediction", shared=False)  # type: ignore[untyped-decorator]
    def submit_prediction(self: SubmitPrediction, *args: Any, **kwargs: Any) -> Any:
        """Answer questions about a state: `(state, questions, **options)`."""
        request = self.request
        check_schema(request)
        deadline = deadline_of(request)
        tenant = self.tenant(request, args, kwargs)
        with may_be_handed_over(self, request), answering(self.name, request), noting(request):
            result = self.service().predict(read_call(args, kwargs), deadline, tenant)
        return result if request.is_eager else Shown(result)

    @on.task(base=SubmitPredictions, bind=True, name="laya.submit_predictions", shared=False)  # type: ignore[untyped-decorator]
    def submit_predictions(self: SubmitPredictions, *args: Any, **kwargs: Any) -> Any:
        """Answer a list of requests, in order; one that fails is an error entry at its place."""
        request = self.request
        check_schema(request)
        deadline = deadline_of(request)
        tenant = self.tenant(request, args, kwargs)
        items = check_batch(read_batch(args, kwargs), self.app.settings.limits)
        with answering(self.name, request), noting(request):
            results = self.service().predict_many(items, deadline, tenant)
        return results if request.is_eager else Shown(results)

    return submit_prediction, submit_predictions


def check_schema(request: Any) -> None:
    """Refuse a message that this worker would misread, a request of Celery's.

    Raises:
        InvalidRequest: the message has a newer schema than this worker reads.
    """
    version = (request.headers or {}).get(SCHEMA_HEADER, SCHEMA)
    if not isinstance(version, int) or version > SCHEMA:
        raise InvalidRequest(
            f"the message has schema {version!r}, and this worker reads up to {SCHEMA}: update the workers "
            "before the backends"
        )


def deadline_of(request: Any) -> float | None:
    """The Unix time at which a message expires, a request of Celery's; None if it never does."""
    expires = request.expires
    if expires is None:
        return None
    when = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def is_eager(on: PredictionApp) -> bool:
    """Whether tasks run in this process: by Celery's `task_always_eager`, or by Django's setting of that name."""
    if on.conf.task_always_eager:
        return True
    django = getattr(sys.modules.get("django.conf"), "settings", None)
    return bool(django is not None and django.configured and getattr(django, "CELERY_TASK_ALWAYS_EAGER", False))


def is_broker_error(error: BaseException) -> bool:
    """Whether a failure to publish is the broker's or the connection's, and not the caller's."""
    if isinstance(error, BatchPublishError) and error.__cause__ is not None:  # it ended a pipeline, whatever it was
        error = error.__cause__
    redis = sys.modules.get("redis.exceptions")
    return isinstance(error, OperationalError | OSError) or (redis is not None and isinstance(error, redis.RedisError))


submit_prediction, submit_predictions = register(app)
