"""How a worker's heartbeat gets to the broker's server, and what the worker says of itself from its start.

The connection is the worker's own, beside the one that its messages come through, which may be waiting. What is told
and asked is `worker.announcements`', when and what follows is `worker.observer`'s.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from kombu.exceptions import OperationalError
from redis import Redis

from worker.announcements import Heard, Told, WorkerEntry, exchange

Exchange = Callable[[WorkerEntry | None, Mapping[str, Told]], Heard]
"""Tells a worker's entry (None: it leaves) and what it tells of each checkpoint; returns what it heard.

Raises `redis.exceptions.RedisError` or `OSError` where the server cannot be asked.
"""


def ask_through(app: Any, namespace: str, worker: str) -> Exchange:
    """How a worker asks the broker's server: through a connection of its own, made as the queue's are."""
    connection = app.connection_for_write()
    clients: list[tuple[Any, str]] = []

    def ask(entry: WorkerEntry | None, told: Mapping[str, Told]) -> Heard:
        if not clients:
            try:
                channel = connection.default_channel
            except (*connection.connection_errors, OperationalError) as error:  # kombu has one of its own, too
                raise OSError(str(error)) from error
            clients.append((_plain(channel), channel.global_keyprefix))
        client, prefix = clients[0]
        return exchange(client, namespace, worker, entry, told, prefix)

    return ask


def _plain(channel: Any) -> Any:
    """A client that prefixes no key by itself, on the channel's connections."""
    return Redis(connection_pool=channel.pool)


def entry_of(node: str, capacity: str, serves: tuple[str, ...]) -> WorkerEntry:
    """What a worker tells about itself from its start."""
    host, started = node.partition("@")[2] or node, round(time.time(), 3)
    return WorkerEntry(f"{node}:{os.getpid()}", node, host, os.getpid(), started, capacity=capacity, serves=serves)
