"""What a replica's refusals mean: the server that was the primary is none any more, and another one is.

Behind an address that follows the primary, whoever reconnects finds it. redis-py reports the refusal as the command's
own mistake, on which nobody reconnects; here it is a lost connection.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.exceptions import MasterDownError, ReadOnlyError


class Moved(redis.ConnectionError):
    """The server answers, but it is no longer the primary: connect anew, to whichever is now."""


def raise_if_moved(error: BaseException) -> None:
    """Turn a replica's refusal into a connection error, on which kombu and Celery reconnect and try again.

    Raises:
        Moved: it was one.
    """
    if isinstance(error, ReadOnlyError | MasterDownError):
        raise Moved("the server is no primary any more: reconnecting") from error


class PrimaryConnection(redis.Connection):
    """A connection that is lost when its server becomes a replica."""

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply; see redis-py.

        Raises:
            Moved: the reply is a replica's refusal.
        """
        try:
            return super().read_response(*args, **kwargs)
        except redis.ResponseError as error:
            try:
                raise_if_moved(error)
            except Moved:
                self.disconnect()  # type: ignore[no-untyped-call]
                raise
            raise


class SecurePrimaryConnection(PrimaryConnection, redis.SSLConnection):
    """The same through TLS."""
