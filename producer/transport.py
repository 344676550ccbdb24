"""The queue's wire: kombu's Redis transport, with messages taken and recorded in one step.

kombu pops a message and records it as unacknowledged in a second step; a worker that dies in between loses it. Here one
script does both, for as many messages as the worker has room for, and carries the acknowledgements that have gathered.
While its queues are empty a worker waits on their doorbells, small lists that our producers ring. Lists, priorities,
unacknowledged records and bindings keep kombu's layout, so that stock Celery works beside it on the same queues.
"""

from __future__ import annotations

import ssl
from typing import Any

from kombu.transport import redis as stock

from producer.transport_channel import Channel, SentinelChannel
from producer.transport_take import PAUSE_S


class Poller(stock.MultiChannelPoller):
    """kombu's poller, whose every turn also sends the acknowledgements that no take carries."""

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Wait for an event without a loop; a second at most, for nothing may be under way that ends it."""
        super().get(callback, PAUSE_S if timeout is None else min(timeout, PAUSE_S))

    def on_poll_start(self) -> None:
        """Send what is to be sent before waiting."""
        for channel in tuple(self._channels):
            channel.drop_if_silent()
        super().on_poll_start()
        for channel in tuple(self._channels):
            channel.turn()


class Transport(stock.Transport):
    """`redis://`."""

    Channel = Channel

    in_event_loop = False
    malformed = 0
    """Malformed messages that this connection has set aside."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """See kombu's transport.

        Raises:
            ValueError: the connection has several URLs, of which kombu would serve the others by its own transport.
        """
        super().__init__(client, **kwargs)
        self._check_urls(client)
        self.cycle: Any = Poller()

    def _check_urls(self, client: Any) -> None:
        if len(client.alt) > 1:
            raise ValueError("broker URL: expected one server, found several; sentinel:// takes a list of sentinels")

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Join a worker's event loop."""
        super().register_with_event_loop(connection, loop)
        self.in_event_loop = True

    def close_connection(self, connection: Any) -> None:
        """Leave the event loop, and close every channel."""
        super().close_connection(connection)
        self.in_event_loop = False


class SecureTransport(Transport):
    """`rediss://`. kombu knows by the name of its own transport that this is TLS; this one says it itself."""

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """See kombu's transport. Verifies the server's certificate unless the connection's options say otherwise."""
        super().__init__(client, **kwargs)
        client.ssl = client.ssl or {"ssl_cert_reqs": ssl.CERT_REQUIRED}


class SentinelTransport(Transport, stock.SentinelTransport):
    """`sentinel://`."""

    Channel = SentinelChannel

    def _check_urls(self, client: Any) -> None:
        client.cycle = None  # the list is of sentinels, all asked by redis-py: there is no next broker to go on with
