"""Which transport carries a broker URL's messages. Says it by name, so that an app's settings import none of it."""

from __future__ import annotations


def transport_for(url: str) -> str:
    """What `broker_transport` is for a broker URL, as an import path.

    Raises:
        ValueError: a scheme that is not `redis`, `rediss` or `sentinel`.
    """
    scheme = url.partition("://")[0]
    if scheme in {"redis", "rediss"}:
        return "producer.transport:Transport"
    if scheme == "sentinel":
        return "producer.transport:SentinelTransport"
    raise ValueError(f"broker URL scheme {scheme!r}: expected redis://, rediss:// or sentinel://")
