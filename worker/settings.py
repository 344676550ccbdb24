"""What a worker reads from its environment, beyond what it shares with the backends.

The settings say which checkpoints this worker may serve, what it holds in memory and which hooks run. What is
done with them is in `worker.serving_router` and `worker.app`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import NoDecode

from laya.catalog import DEFAULT_MODELS, canonical_name
from laya.memory import parse_bytes
from laya.passes import MAX_TOKENS
from producer.settings import ProducerSettings

Names = Annotated[tuple[str, ...], NoDecode]


class WorkerSettings(ProducerSettings):
    """The settings of a worker; each is read from the variable of the same name with `LAYA_` before it."""

    preload: Names = Field((), description="Checkpoints that are loaded before the worker takes requests.")
    max_loaded: str = Field(
        "2", description="What is held in memory at once: a number of checkpoints, or an amount such as `6GiB`."
    )
    dwell: float = Field(
        10.0, ge=0, description="Seconds for which a loaded checkpoint is not evicted for another's sake."
    )
    device: str | None = Field(
        None, description="Device of the checkpoints, such as `cuda:0`; the best one there is if unset."
    )
    max_batch_tokens: int = Field(MAX_TOKENS, ge=1, description="Tokens, padding counted, in one forward pass at most.")
    batch_wait_ms: float = Field(
        0.0, ge=0, description="Milliseconds that a free device waits for more requests; 0 computes at once."
    )
    cpu_fallback: bool = Field(
        default=False, description="Compute what does not fit the device's memory on the CPU, instead of failing it."
    )
    remote_control: bool = Field(
        default=True,
        description="Obey control commands that change something (`load`, `unload`, Celery's own); 0 answers `inspect` "
        "alone.",
    )
    events_show_state: bool = Field(
        default=False,
        description="Show arguments and texts of errors in logs and events, for debugging: they may hold states.",
    )
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="Lines of the log: `text`, `json`, or `auto`: text on a terminal, JSON elsewhere."
    )
    max_deliveries: int = Field(
        3, ge=1, description="Times that workers begin a request and die of it, before it is dead-lettered."
    )
    unserved_after: float = Field(
        30.0,
        ge=0,
        description="Seconds after which a request for a checkpoint that no worker serves is answered with the error; "
        "0 lets it wait.",
    )
    dead_max: int = Field(1000, ge=1, description="Dead letters that are kept; the oldest go first.")
    dead_ttl: int = Field(604_800, gt=0, description="Seconds for which a dead letter is kept.")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port of the metrics for Prometheus; 0 takes a free one, unset serves none."
    )
    metrics_host: str = Field("127.0.0.1", description="Address that the metrics are served at.")
    hang_seconds: float = Field(
        300.0,
        gt=0,
        description="Seconds on one request, loads not counted, after which a worker takes itself for hung and ends.",
    )
    load_seconds: float = Field(
        1800.0,
        gt=0,
        description="Seconds on one load, a download included, after which a worker takes itself for hung and ends.",
    )
    run_dir: str | None = Field(
        None, description="Directory of the files that `laya-workers health` reads; one of this user's if unset."
    )
    hooks: Names = Field(
        (), description="Dotted paths to hook classes or factories, in order: `hooks.LoadCount,my_hooks.Redact`."
    )

    @field_validator("preload", "hooks", mode="before")
    @classmethod
    def _read_names(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)
        return value

    @field_validator("max_loaded", mode="before")
    @classmethod
    def _check_max_loaded(cls, value: Any) -> str:
        text = str(value).strip()
        if (int(text) if text.isdecimal() else parse_bytes(text)) < 1:
            raise ValueError("expected at least one checkpoint, or an amount such as 6GiB")
        return text

    @model_validator(mode="after")
    def _check_sources(self) -> WorkerSettings:
        for checkpoint in self.checkpoints:
            if checkpoint.source is None and checkpoint.name not in DEFAULT_MODELS:
                raise ValueError(
                    f"LAYA_CHECKPOINTS: {checkpoint.name!r} is no built-in name, so a worker needs its source: "
                    f"write {checkpoint.name}=/path or {checkpoint.name}=repository"
                )
        return self

    @model_validator(mode="after")
    def _check_preload(self) -> WorkerSettings:
        if len(self.preloaded) > self.places:
            raise ValueError(
                f"LAYA_PRELOAD names {len(self.preloaded)} checkpoints, but LAYA_MAX_LOADED holds "
                f"{self.max_loaded}: raise it, or preload fewer"
            )
        return self

    @property
    def memory(self) -> int | None:
        """Bytes of checkpoints that LAYA_MAX_LOADED allows; None where it counts checkpoints."""
        return None if self.max_loaded.isdecimal() else parse_bytes(self.max_loaded)

    @property
    def places(self) -> int:
        """Checkpoints that LAYA_MAX_LOADED allows; any number where it counts bytes."""
        return int(self.max_loaded) if self.max_loaded.isdecimal() else max(1, len(self.names))

    @property
    def preloaded(self) -> tuple[str, ...]:
        """The registered names of the checkpoints to preload, each once, in the order given."""
        try:
            return tuple(dict.fromkeys(canonical_name(name, self.names) for name in self.preload))
        except ValueError as error:
            raise ValueError(f"LAYA_PRELOAD: {error}; LAYA_CHECKPOINTS lists them") from None


def problems(error: ValidationError) -> str:
    """What is wrong with the settings, on one line that names each variable."""
    return "; ".join(_problem(problem["loc"], problem["msg"]) for problem in error.errors())


def _problem(location: tuple[int | str, ...], message: str) -> str:
    """What is wrong with one setting; our own messages name the variable themselves."""
    message = message.removeprefix("Value error, ")
    if "LAYA_" in message or not location:
        return message
    return f"LAYA_{str(location[0]).upper()}: {message}"
