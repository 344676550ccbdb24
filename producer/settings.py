"""What a backend reads from its environment: `LAYA_…` variables, checked once.

A worker reads the same and more, in `worker.settings`. What the settings mean for Celery is in `producer.app`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from producer.checkpoints import BUILT_IN, CheckpointSource, default_of, parse_checkpoints
from producer.limits import DEEPEST, DEFAULT, Limits
from producer.transport_name import TRANSPORTS

SHORTEST_KEY = 16
"""Characters of a secret at least: one that can be guessed signs for everybody."""


class ProducerSettings(BaseSettings):
    """The settings of a backend; each is read from the variable of the same name with `LAYA_` before it."""

    # A URL may hold a password: it is shown neither in a repr nor in the error about another variable.
    model_config = SettingsConfigDict(
        env_prefix="LAYA_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    broker_url: str = Field(
        "redis://127.0.0.1:6379/0",
        repr=False,
        description="Server that carries requests: `redis://`, `rediss://` or `sentinel://`.",
    )
    result_url: str | None = Field(None, repr=False, description="Server that keeps results; the broker's if unset.")
    sentinel_master: str = Field(
        "mymaster", description="Name by which the sentinels of a `sentinel://` URL know the server."
    )
    namespace: str = Field(
        "laya",
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="First part of every key beside the queues: deployments that share a server must not share it.",
    )
    tenant_key: SecretStr | None = Field(
        None,
        description="Secret that signs and verifies `tenant=`, the same on backends and workers; several, separated by "
        "commas, to change it: the first signs, all verify.",
    )
    checkpoints: Annotated[tuple[CheckpointSource, ...], NoDecode] = Field(
        BUILT_IN,
        description="Registered checkpoints: `english=/path,multilingual=repo:subfolder@revision,small`.",
    )
    default_model: str | None = Field(
        None, description="Checkpoint of requests whose language is undecided; `multilingual` if registered."
    )
    max_payload: int = Field(DEFAULT.payload, gt=0, description="Largest message, in bytes of JSON in UTF-8.")
    max_questions: int = Field(DEFAULT.questions, gt=0, description="Questions of one request at most.")
    max_options: int = Field(DEFAULT.options, gt=0, description="Options of one question at most.")
    max_depth: int = Field(
        DEFAULT.depth, gt=0, le=DEEPEST, description="Levels of lists and mappings inside one another at most."
    )
    max_text: int = Field(
        DEFAULT.text,
        gt=0,
        description="Characters of one text at most, in a state or a question; `LAYA_MAX_PAYLOAD` counts them all.",
    )
    max_batch: int = Field(DEFAULT.batch, gt=0, description="Requests of one message of `submit_predictions` at most.")
    max_queue: int = Field(
        10_000,
        ge=0,
        description="Messages that may wait for a checkpoint before a backend gets `QueueFull`; 0 for any number.",
    )
    result_ttl: int = Field(3600, gt=0, description="Seconds for which a result is kept.")
    visibility_timeout: int = Field(
        120,
        gt=0,
        description="Seconds after which an unacknowledged request goes to another worker. "
        "The same on every backend and worker of a broker.",
    )
    task_always_eager: bool = Field(
        default=False,
        validation_alias=AliasChoices("CELERY_TASK_ALWAYS_EAGER"),
        description="Answer in this process, with `producer.testing`; the variable has no `LAYA_` before it.",
    )

    @field_validator("broker_url", "result_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        # The value is not repeated: it may hold a password.
        if value is not None and value.partition("://")[0] not in TRANSPORTS:
            raise ValueError("expected a URL that begins with redis://, rediss:// or sentinel://")
        if value is not None and ";" in value and not value.startswith("sentinel://"):
            raise ValueError("expected one server, found several; sentinel:// takes a list of sentinels")
        if value is not None and not all(map(_can_be_read, value.split(";"))):
            raise ValueError(
                "expected redis://USER:PASSWORD@HOST:PORT/DATABASE, with numbers for port and database and special "
                "characters percent-encoded"
            )
        return value

    @field_validator("tenant_key")
    @classmethod
    def _check_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and any(len(key) < SHORTEST_KEY for key in _parts(value)):
            raise ValueError(f"expected secrets of at least {SHORTEST_KEY} characters, separated by commas")
        return value

    @field_validator("checkpoints", mode="before")
    @classmethod
    def _read_checkpoints(cls, value: Any) -> Any:
        return parse_checkpoints(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_default(self) -> ProducerSettings:
        default_of(self.names, self.default_model)
        return self

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the registered checkpoints, in the order given."""
        return tuple(checkpoint.name for checkpoint in self.checkpoints)

    @cached_property
    def limits(self) -> Limits:
        """How large a request may be."""
        return Limits(
            payload=self.max_payload,
            questions=self.max_questions,
            options=self.max_options,
            depth=self.max_depth,
            text=self.max_text,
            batch=self.max_batch,
        )

    @property
    def tenant_keys(self) -> tuple[str, ...]:
        """The secrets of `tenant_key`: the first signs, all verify."""
        return () if self.tenant_key is None else _parts(self.tenant_key)

    @cached_property
    def default_checkpoint(self) -> str:
        """The registered name that undecided requests go to."""
        return default_of(self.names, self.default_model)

    @property
    def results(self) -> str:
        """The URL of the server that keeps results."""
        return self.result_url or self.broker_url


def _can_be_read(url: str) -> bool:
    """Whether a URL has a host, a port and a database as kombu reads them."""
    try:
        parts = urlsplit(url)
        return (parts.port is None or parts.port > 0) and not parts.path.strip("/").strip("0123456789")
    except ValueError:
        return False


def _parts(secret: SecretStr) -> tuple[str, ...]:
    return tuple(part.strip() for part in secret.get_secret_value().split(","))
