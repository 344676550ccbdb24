"""The Celery app that backends and workers share, made from settings.

It is never the process's current app: a backend may have one of its own. JSON alone travels, both ways. Its
tasks are in `producer.tasks`, how results are kept and awaited in `producer.results`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from celery import Celery

from producer.checkpoints import QUEUE_PREFIX
from producer.request import BatchItem, PredictionRequest
from producer.settings import ProducerSettings
from producer.transport_name import store_for, tls_for, transport_for

# One list in Redis for each step and queue. These are kombu's own, so that a stock worker beside ours reads
# every list that we write; a priority counts as the step below it, and 0 goes first.
PRIORITY_STEPS: Final = (0, 3, 6, 9)

# A publish is tried twice, each try with at most two waits, so that a broker that is down or silent is an error
# within two seconds.
_PATIENCE_SECONDS: Final = 0.45
_ONE_RETRY: Final = {"max_retries": 1, "interval_start": 0, "interval_step": 0.05, "interval_max": 0.05}

# The sweep for unacknowledged messages: its defaults would add over 100 s to the visibility timeout.
_RESTORE: Final = {"unacked_restore_interval": 2, "unacked_restore_throttle": 1}


class PredictionService(Protocol):
    """What answers requests in a process: a worker's serving, or `producer.testing`."""

    def predict(self, request: PredictionRequest, deadline: float | None, tenant: str | None = None) -> dict[str, Any]:
        """Answer one request.

        Args:
            request: as it came, unchecked.
            deadline: Unix time after which the answer is of no use, or None.
            tenant: whose request it is, verified; None for the deployment's own.

        Raises:
            LayaError: whatever went wrong.
        """

    def predict_many(
        self, items: Sequence[BatchItem], deadline: float | None, tenant: str | None = None
    ) -> list[dict[str, Any]]:
        """Answer checked requests in order; one that fails is an error entry at its place."""


class PredictionApp(Celery):  # type: ignore[misc] # celery has no types
    """A Celery app with its settings and, in a process that answers, its service.

    The settings are read from the environment when they are first needed, not at import.
    """

    service: PredictionService | None = None
    """What answers in this process. None in a backend, where only publishing makes sense."""

    def __init__(self, settings: ProducerSettings | None = None) -> None:
        """Make an app for the given settings, or for those of the environment."""
        # No fixups: with Django's, our worker would load the backend's project.
        super().__init__("laya", set_as_current=False, fixups=[])
        self._settings = settings
        self.add_defaults(lambda: celery_settings(self.settings))

    @property
    def settings(self) -> ProducerSettings:
        """The settings of this app."""
        if self._settings is None:
            self._settings = ProducerSettings()
        return self._settings

    def use(self, settings: ProducerSettings) -> None:
        """Take other settings, before anything is published or awaited with the old ones."""
        self._settings = settings
        self.conf.update(celery_settings(settings))

    def close(self) -> None:
        """Forget the app as Celery does, and end what its result store has open: a thread, a subscription, a pool.

        Who still waits for a result gets `BrokerUnavailable`. An app that is used again opens them anew.
        """
        store = self._backend
        if store is not None:
            store.close()
        super().close()


def celery_settings(settings: ProducerSettings) -> dict[str, Any]:
    """What our settings mean for Celery, on both sides."""
    return {
        "broker_url": settings.broker_url,
        "broker_transport": transport_for(settings.broker_url),
        "broker_use_ssl": tls_for(settings.broker_url),
        "redis_backend_use_ssl": tls_for(settings.results),
        "result_backend": f"{store_for(settings.results)}+{settings.results}",
        "result_backend_transport_options": {"master_name": settings.sentinel_master},
        "result_backend_thread_safe": True,
        "result_expires": settings.result_ttl,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "result_accept_content": ["json"],
        # The queue of Celery's own helpers (groups, maps); each checkpoint has one besides.
        "task_default_queue": QUEUE_PREFIX,
        "task_acks_late": True,
        "task_track_started": True,
        "task_always_eager": settings.task_always_eager,
        "task_publish_retry_policy": _ONE_RETRY,
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        "worker_send_task_events": True,
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": {
            "master_name": settings.sentinel_master,
            "visibility_timeout": settings.visibility_timeout,
            "priority_steps": list(PRIORITY_STEPS),
            "max_queue": settings.max_queue,
            "socket_connect_timeout": _PATIENCE_SECONDS,
            "socket_timeout": _PATIENCE_SECONDS,
            **_ONE_RETRY,
            **_RESTORE,
        },
        "redis_socket_connect_timeout": 2.0,
        "redis_socket_timeout": 5.0,
        "redis_socket_keepalive": True,
    }


app = PredictionApp()
"""The app of this process, for the settings of its environment."""
