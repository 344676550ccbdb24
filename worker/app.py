"""The worker's Celery app: `celery -A worker worker` serves the checkpoints that the settings register.

It is the producer's app with a service. Importing it loads no checkpoint and no torch: that happens in a worker
that starts.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from celery import bootsteps, signals
from celery.apps.worker import Worker
from kombu.entity import Exchange, Queue
from pydantic import ValidationError

from producer.app import PredictionApp
from producer.app import app as producer_app
from producer.checkpoints import QUEUE_PREFIX, queue_of
from producer.errors import CheckpointUnavailable
from producer.tasks import submit_prediction, submit_predictions
from worker import (
    inspection,  # noqa: F401 - makes `celery -A worker inspect resident` known on both sides
    log_format,
    logs,
)
from worker.control import ControlStep
from worker.dashboard import CONFIG
from worker.ending import EndingStep, breaking_off
from worker.holding import HoldingStep
from worker.login import LoginStep
from worker.metrics_step import MetricsStep
from worker.placement_step import PlacementStep
from worker.pool import PoolRefused, asked_pool, check_pool
from worker.redelivery import RedeliveryStep
from worker.room import RoomStep
from worker.settings import WorkerSettings, problems
from worker.single import single_out
from worker.storing import patient_store_for
from worker.tracing import TracingStep
from worker.unreadable import UnreadableStep
from worker.unserved import UnservedStep
from worker.watchdog_step import PulseStep, WatchdogStep

logger = logging.getLogger(__name__)

# Threads, each working on one message: enough for a large batch to form under them.
CONCURRENCY: Final = 32

# A worker can wait longer for a slow server than a web request: giving up costs it what it was just taking. But several
# such waits may follow each other before it has noticed that a connection is dead, and has another.
_SOCKET_SECONDS: Final = {"socket_connect_timeout": 2.0, "socket_timeout": 3.0, "health_check_interval": 5}

# kombu makes an object of it for each channel.
_ORDER: Final = {"queue_order_strategy": "worker.queue_order:ResidentFirst"}


class ServingStep(bootsteps.StartStopStep):  # type: ignore[misc] # celery has no types
    """Refuses a pool that cannot serve, then brings up the service before the first message is taken."""

    requires = ("celery.worker.components:Pool", "worker.watchdog_step:WatchdogStep", "worker.login:LoginStep")

    def __init__(self, parent: Worker, **options: Any) -> None:
        """Check the pool while nothing is running yet."""
        super().__init__(parent, **options)
        try:
            check_pool(asked_pool(sys.argv) or parent.pool_cls)
        except PoolRefused as refusal:
            print(f"laya: {refusal}", file=sys.stderr)
            raise SystemExit(os.EX_CONFIG) from None

    def start(self, parent: Worker) -> None:
        """Make the Router and load what is to be preloaded.

        Raises:
            SystemExit: a hook cannot be made, or a checkpoint not loaded. The log says which, in one line.
        """
        from worker.configured_hooks import HookUnavailable  # noqa: PLC0415 - other commands of Celery's need none of it

        try:
            self._serve(parent)
        except (HookUnavailable, CheckpointUnavailable) as error:
            # A setting is wrong, not the code: where in the code that was found is for those who ask.
            logger.critical("%s", " ".join(str(error).split()))
            logger.debug("That came from", exc_info=True)
            # A source may be there the next time, a hook will not.
            raise SystemExit(os.EX_CONFIG if isinstance(error, HookUnavailable) else 1) from None

    def _serve(self, parent: Worker) -> None:
        from worker.serving import Serving  # noqa: PLC0415 - as above

        # LAYA_HOOKS may name modules that lie here; Celery looks here for the app alone, and its script for nothing.
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
        service = Serving(parent.app.settings)
        service.single_out = lambda: single_out(parent.app, parent.app.settings)
        parent.app.service = service
        service.tally.watch({submit_prediction.name, submit_predictions.name})
        # The worker sends this when its pool has finished, so no request is at work any longer.
        signals.worker_shutdown.connect(lambda **_: service.close(), sender=parent, weak=False)
        service.prepare()
        # What was imported stays, and a collection that looks at all of it stops every thread for 0.1 s now and then.
        # Checkpoints come after this, so that their memory is given back when they go.
        gc.collect()
        gc.freeze()
        with breaking_off(parent):
            service.start()


def prepare(app: PredictionApp, settings: WorkerSettings) -> PredictionApp:
    """Turn a producer's app into a worker's: its queues, its pool, its service."""
    app.use(settings)
    app.conf.update(
        worker_pool="threads",
        worker_concurrency=CONCURRENCY,
        worker_consumer="worker.consumer:PersistentConsumer",
        broker_connection_max_retries=None,
        result_backend=f"{patient_store_for(settings.results)}+{settings.results}",
        redis_socket_timeout=_SOCKET_SECONDS["socket_timeout"],
        task_queues=[_queue(name) for name in (QUEUE_PREFIX, *map(queue_of, settings.names))],
        broker_transport_options={**app.conf.broker_transport_options, **_SOCKET_SECONDS, **_ORDER, "max_queue": 0},
    )
    app.steps["worker"].update(
        {
            ServingStep,
            PlacementStep,
            ControlStep,
            RedeliveryStep,
            MetricsStep,
            TracingStep,
            WatchdogStep,
            EndingStep,
            LoginStep,
            UnservedStep,
        }
    )
    app.steps["consumer"].update({RoomStep, HoldingStep, UnreadableStep, PulseStep})
    for task in app.tasks.values():
        task.Request = "worker.settling:SettledMessage"
    # Celery sends this before it sets up its loggers, in a worker and in no other command.
    signals.celeryd_init.connect(lambda **_: logs.install(log_state=settings.events_show_state), weak=False)
    signals.celeryd_init.connect(lambda **_: log_format.install(settings.log_format), weak=False)
    return app


def _queue(name: str) -> Any:
    """A queue of that name, reached by that name."""
    return Queue(name, Exchange(name), routing_key=name)  # type: ignore[no-untyped-call]


def read_settings() -> WorkerSettings:
    """The settings of the environment. One that cannot be read is an error where this module is imported, and ends a
    command line (Celery's, which would show it with its traceback) with one line.

    Raises:
        ValidationError: a setting cannot be read, and nobody typed a command.
    """
    try:
        return WorkerSettings()
    except ValidationError as error:
        click = sys.modules.get("click")
        if click is None or click.get_current_context(silent=True) is None:
            raise
        print(f"error: {problems(error)}", file=sys.stderr)
        raise SystemExit(os.EX_CONFIG) from None


# `celery -A worker flower` reads the path of its configuration here, after it has loaded the app.
os.environ.setdefault("FLOWER_CONF", str(CONFIG))

app = prepare(producer_app, read_settings())
"""The app of this process, for the settings of its environment."""
