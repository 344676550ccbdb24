"""Which of our classes serve a broker's and a result store's URL, and how it is secured.

They are named, not imported: an app's settings are read long before anybody connects.
"""

from __future__ import annotations

import ssl
from typing import Any, Final

TRANSPORTS: Final = {
    "redis": "producer.transport:Transport",
    "rediss": "producer.transport:SecureTransport",
    "sentinel": "producer.transport:SentinelTransport",
}
"""Import paths by URL scheme."""


def transport_for(url: str) -> str:
    """What `broker_transport` is for a broker URL, as an import path.

    Raises:
        ValueError: a scheme that is not `redis`, `rediss` or `sentinel`, or several servers without sentinels.
    """
    from kombu.connection import resolve_aliases  # noqa: PLC0415 - settings are read before kombu is needed

    scheme = url.partition("://")[0]
    if scheme not in TRANSPORTS:
        raise ValueError(f"broker URL scheme {scheme!r}: expected redis://, rediss:// or sentinel://")
    if ";" in url and scheme != "sentinel":
        # kombu would go on with its own transport for the next server of the list.
        raise ValueError("broker URL: expected one server, found several; sentinel:// takes a list of sentinels")
    # In logs, in `celery report` and for Flower, a connection is what its URL says.
    resolve_aliases.update({path: name for name, path in TRANSPORTS.items()})
    return TRANSPORTS[scheme]


def store_for(url: str) -> str:
    """Which class keeps results at a URL, as an import path."""
    return "producer.results:SentinelResultStore" if url.startswith("sentinel://") else "producer.results:ResultStore"


def tls_for(url: str) -> dict[str, Any] | None:
    """What `broker_use_ssl` and `redis_backend_use_ssl` are for a URL: None where it asks for no TLS.

    Options come from the URL's query (`ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, `ssl_cert_reqs`); certificates are
    verified unless it says otherwise.
    """
    if not url.startswith("rediss://"):
        return None
    from kombu.utils.url import parse_url  # noqa: PLC0415 - only where there are certificates

    options: dict[str, Any] = parse_url(url).get("ssl") or {}
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, **options}
