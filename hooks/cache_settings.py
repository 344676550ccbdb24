"""What the skip cache reads from its environment: `LAYA_CACHE_…`, and what it shares with the worker.

A shipped hook reads its own settings, because a worker makes its hooks without arguments. What the settings mean is in
the modules that use them.
"""

from __future__ import annotations

import logging

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from redis.connection import parse_url

logger = logging.getLogger(__name__)

_SCHEMES = ("redis", "rediss", "unix")


class CacheSettings(BaseSettings):
    """The settings of the skip cache; each is read from the variable of the same name with `LAYA_` before it."""

    # A URL may hold a password: it is shown neither in a repr nor in the error about another variable.
    model_config = SettingsConfigDict(
        env_prefix="LAYA_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    broker_url: str = Field("redis://127.0.0.1:6379/0", repr=False, description="As the worker reads it.")
    namespace: str = Field("laya", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="As the worker reads it.")
    cache_url: str | None = Field(
        None,
        repr=False,
        description="Server of the skip cache: `redis://`, `rediss://` or `unix://`; the broker's if unset, with a "
        "warning.",
    )
    cache_ttl: int = Field(
        86_400, gt=0, description="Seconds for which an answer is kept, up to a tenth less at random."
    )
    cache_budget_ms: float = Field(
        20.0, gt=0, description="Milliseconds that a prediction waits for the cache's server at most."
    )
    cache_max_bytes: int = Field(262_144, gt=0, description="Largest answer that is kept, in bytes of JSON.")
    cache_compress_above: int = Field(
        1024, ge=0, description="Answers of more bytes are compressed (zstd) on the server."
    )
    cache_lease: float = Field(
        5.0,
        ge=0,
        le=3600,
        description="Seconds that a request waits at most for an equal one that is being computed; 0 waits for none.",
    )
    cache_pause: float = Field(
        5.0, gt=0, description="Seconds for which a server that failed five times in a row is left alone."
    )
    cache_local_bytes: int = Field(
        16_777_216,
        ge=0,
        description="Bytes of answers that each process keeps in its own memory too, for five seconds; 0 is off.",
    )

    @field_validator("cache_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        # The value is not repeated: it may hold a password.
        if value is not None and value.partition("://")[0] not in _SCHEMES:
            raise ValueError("expected a URL that begins with redis://, rediss:// or unix://")
        return value

    @field_validator("broker_url", "cache_url")
    @classmethod
    def _check_parts(cls, value: str | None) -> str | None:
        if value is not None and value.partition("://")[0] in _SCHEMES:
            try:
                parse_url(value)  # type: ignore[no-untyped-call]
            except ValueError:
                raise ValueError("expected a URL whose host, port and options can be read") from None
        return value

    @property
    def url(self) -> str:
        """The URL of the cache's server.

        Raises:
            ValueError: none is set, and the broker's is no server's own address.
        """
        if self.cache_url is not None:
            return self.cache_url
        if self.broker_url.partition("://")[0] not in _SCHEMES:
            raise ValueError("the skip cache needs LAYA_CACHE_URL: the broker's is not the URL of one server")
        return self.broker_url

    @property
    def shares_the_broker(self) -> bool:
        """Whether the cache's server is the one that carries the requests, whatever the database."""
        if self.cache_url is None:
            return True
        if self.broker_url.partition("://")[0] not in _SCHEMES:
            return False
        return address_of(self.cache_url) == address_of(self.broker_url)


def address_of(url: str) -> str:
    """Host and port of a server, or its socket's path: what may be shown of its URL."""
    parts = parse_url(url)  # type: ignore[no-untyped-call]
    if "path" in parts:
        return str(parts["path"])
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 6379)}"


def warn_of_one_server(settings: CacheSettings) -> None:
    """Say it where the cache's answers and the queue's messages share a server's memory."""
    if settings.shares_the_broker:
        logger.warning(
            "The skip cache shares the broker's server (%s): a server that may not lose requests must not evict, so "
            "that a full cache stops the queue. Point LAYA_CACHE_URL at a server of its own with maxmemory and "
            "maxmemory-policy allkeys-lfu",
            address_of(settings.url),
        )
