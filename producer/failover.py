"""What a replica's refusals mean: the server that was the primary is none any more, and another one is."""

from __future__ import annotations

from redis.exceptions import MasterDownError, ReadOnlyError


class Moved(ConnectionError):
    """The server answers, but it is no longer the primary: connect anew, to whichever is now."""


def raise_if_moved(error: BaseException) -> None:
    """Turn a replica's refusal into a connection error, on which kombu and Celery reconnect and try again.

    Raises:
        Moved: it was one.
    """
    if isinstance(error, ReadOnlyError | MasterDownError):
        raise Moved("the server is no primary any more: reconnecting") from error
