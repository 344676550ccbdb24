"""From a checkpoint's source to a loaded checkpoint: checking its files and handing them to their kind.

Where the files lie is :mod:`laya.location`'s. Which checkpoints stay in memory is the Router's business, what a
kind makes of the files its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from laya.decoding import Calibration, read_calibration, with_languages
from laya.device import name_of_precision, pick_device, pick_precision, read_precision
from laya.files import check_digests, read_json
from laya.identity import CheckpointIdentity, ContentBesideLoad, make_identity
from laya.location import CONFIG, locate
from laya.questions import shown
from laya.rows import Kind

DEFAULTS: Mapping[str, Any] = {
    "max_len": 512,
    "head_max_len": 192,
    "amp_dtype": "bf16",
    "act_costs": {},
    "temperature": [1.0, 1.0, 1.0],
    "temperature_by_options": {},
}
"""What a configuration that leaves a key out means."""

LoadKind = Callable[[Path, dict[str, Any], torch.device, "torch.dtype | None"], Kind]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A loaded checkpoint.

    ``source`` is what was asked for, ``path`` the directory that was read, and ``revision`` the commit for a
    checkpoint from the Hub, else None. ``config`` is `rl_agent_config.json` with defaults filled in. ``on_cpu`` gives
    the same kind on the CPU, loaded at the first call, for rows that the device has no memory for; None where the
    device is the CPU already. ``identity`` is of the files as they were loaded; None where they were changed
    meanwhile, so that nobody can tell what was read.
    """

    source: str
    path: Path
    revision: str | None
    config: dict[str, Any]
    kind: Kind
    calibration: Calibration
    on_cpu: Callable[[], Kind] | None = None
    identity: CheckpointIdentity | None = None


def load_checkpoint(
    source: str | Path,
    *,
    subfolder: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    expected_sha256: Mapping[str, str] | None = None,
    device: str | int | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    lang_temperatures: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Load a checkpoint from a built-in name, a directory, or a Hub repository.

    Args:
        source: ``"english"``, an alias, a path, or ``"owner/repository"``.
        subfolder: where in the directory or repository the checkpoint lies.
        revision: branch, tag or commit of a Hub repository.
        token: access token for the Hub; None uses the stored one, False none.
        expected_sha256: hex digests by path relative to the checkpoint, checked before any file is parsed.
        device: see :func:`laya.device.pick_device`.
        dtype: ``"fp32"``, ``"bf16"`` or ``"fp16"``; None takes the device's own.
        lang_temperatures: see :func:`laya.decoding.with_languages`.

    Raises:
        FileNotFoundError: the checkpoint, or a file that it must have, is not there.
        ValueError: the checkpoint is refused; the message names it and the thing.
        RuntimeError: the device that was asked for is not there.
    """
    chosen = pick_device(device)
    precision = read_precision(dtype)
    located = locate(source, subfolder=subfolder, revision=revision, token=token)
    if expected_sha256 is not None:
        check_digests(located.path, expected_sha256)
    content = ContentBesideLoad(located)
    config = read_config(located.path)
    load_kind = _kind_of(located.path, config)
    calibration = with_languages(read_calibration(config, str(located.path)), lang_temperatures)
    kind = load_kind(located.path, config, chosen, precision)
    on_cpu = None
    if chosen.type != "cpu":
        # In the CPU's own precision: it may not have the one that was asked for.
        on_cpu = functools.cache(lambda: load_kind(located.path, config, torch.device("cpu"), None))
    known = content.known()
    identity = known and make_identity(known, name_of_precision(kind.dtype), config, calibration)
    return Checkpoint(str(source), located.path, located.revision, config, kind, calibration, on_cpu, identity or None)


def foresee_dtype(
    config: Mapping[str, Any], device: str | int | torch.device | None, dtype: str | torch.dtype | None
) -> str:
    """The precision, by name, that a checkpoint with this configuration would compute in here.

    Raises:
        ValueError, RuntimeError: as `load_checkpoint`.
    """
    chosen, wanted = pick_device(device), read_precision(dtype)
    if config.get("architecture") == "simulated":
        return name_of_precision(torch.float32)  # it computes nothing
    return name_of_precision(pick_precision(chosen, config["amp_dtype"], wanted))


def read_config(path: Path) -> dict[str, Any]:
    """`rl_agent_config.json` of the checkpoint in ``path``, with defaults filled in.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is not a JSON object, or a budget in it is not a number of tokens.
    """
    config = {**DEFAULTS, **read_json(path, CONFIG)}
    for key in ("max_len", "head_max_len"):
        budget = config[key]
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
            raise ValueError(f"checkpoint {path}: {key} must be a number of tokens, not {shown(budget)}")
    return config


def import_kind(path: Path) -> None:
    """Import what loading the checkpoint in ``path`` takes, and load nothing.

    Raises:
        FileNotFoundError, ValueError: as `load_checkpoint`.
    """
    _kind_of(path, read_config(path))


def _kind_of(path: Path, config: Mapping[str, Any]) -> LoadKind:
    architecture = config.get("architecture")
    if architecture is None:
        from laya.published import load_kind as load_published  # noqa: PLC0415 - a kind imports what it needs

        return load_published
    if architecture == "embedding":
        from laya.embedding import load_kind as load_embedding  # noqa: PLC0415 - as above

        return load_embedding
    if architecture == "simulated":
        from laya.simulated import load_kind as load_simulated  # noqa: PLC0415 - as above

        return load_simulated
    raise ValueError(
        f"checkpoint {path}: architecture {shown(architecture)} is not known: expected 'embedding', or none for the "
        f"published format"
    )
