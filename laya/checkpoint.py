"""From a checkpoint's source to a loaded checkpoint: finding it, checking it, and handing it to its kind.

A source is a built-in name, a directory, or a repository on the Hub. Which checkpoints stay in memory is the
Router's business, what a kind makes of the files its own.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download

from laya.catalog import ALIASES, DEFAULT_MODELS, canonical_name
from laya.decoding import Calibration, read_calibration, with_languages
from laya.device import pick_device, read_precision
from laya.files import check_digests, check_relative, find_file, read_json
from laya.questions import shown
from laya.rows import Kind

CONFIG = "rl_agent_config.json"

WANTED = (CONFIG, "model.safetensors", "tokenizer/*", "encoder/*")
"""The files of one checkpoint. A repository may hold several, each under its own subfolder."""

DEFAULTS: Mapping[str, Any] = {
    "max_len": 512,
    "head_max_len": 192,
    "amp_dtype": "bf16",
    "act_costs": {},
    "temperature": [1.0, 1.0, 1.0],
    "temperature_by_options": {},
}
"""What a configuration that leaves a key out means."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)

LoadKind = Callable[[Path, dict[str, Any], torch.device, "torch.dtype | None"], Kind]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A loaded checkpoint.

    ``source`` is what was asked for, ``path`` the directory that was read, and ``revision`` the commit for a
    checkpoint from the Hub, else None. ``config`` is `rl_agent_config.json` with defaults filled in.
    """

    source: str
    path: Path
    revision: str | None
    config: dict[str, Any]
    kind: Kind
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class Located:
    """Where a checkpoint's files lie, and the commit they are of when they came from the Hub."""

    path: Path
    revision: str | None = None


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
    config = read_config(located.path)
    load_kind = _kind_of(located.path, config)
    calibration = with_languages(read_calibration(config, str(located.path)), lang_temperatures)
    kind = load_kind(located.path, config, chosen, precision)
    return Checkpoint(str(source), located.path, located.revision, config, kind, calibration)


def locate(
    source: str | Path, *, subfolder: str | None = None, revision: str | None = None, token: str | bool | None = None
) -> Located:
    """The directory of a checkpoint, downloaded first where it lies on the Hub.

    A built-in name goes before a directory of the same name, which is spelled with a ``./`` in front.

    Raises:
        FileNotFoundError: the source is the path of a directory that is not there.
        ValueError: the source is an unknown name, or the subfolder leads out of the checkpoint.
    """
    if subfolder is not None:
        check_relative("subfolder", subfolder)
    name = source.strip().lower() if isinstance(source, str) else ""
    if name in DEFAULT_MODELS or name in ALIASES:
        repository, its_own = DEFAULT_MODELS[canonical_name(name, DEFAULT_MODELS)]
        return _download(repository, subfolder or its_own, revision, token)
    directory = Path(source).expanduser()
    if directory.is_dir():
        return Located(directory / (subfolder or ""))
    if isinstance(source, str) and _HUB_ID.fullmatch(source):
        return _download(source, subfolder, revision, token)
    if isinstance(source, str) and not set(source) & {"/", "\\"}:
        raise ValueError(
            f"unknown checkpoint {shown(source)}: it is not one of {', '.join(DEFAULT_MODELS)}, not a directory, "
            f"and not a Hub id such as owner/repository"
        )
    raise FileNotFoundError(f"checkpoint {shown(str(source))}: there is no such directory")


def read_config(path: Path) -> dict[str, Any]:
    """`rl_agent_config.json` of the checkpoint in ``path``, with defaults filled in.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is not a JSON object, or a budget in it is not a number of tokens.
    """
    given = read_json(path, CONFIG)
    config = {**DEFAULTS, **{key: value for key, value in given.items() if value is not None}}
    for key in ("max_len", "head_max_len"):
        budget = config[key]
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
            raise ValueError(f"checkpoint {path}: {key} must be a number of tokens, not {shown(budget)}")
    return config


def _kind_of(path: Path, config: Mapping[str, Any]) -> LoadKind:
    architecture = config.get("architecture")
    if architecture is None:
        from laya.published import load_kind as load_published  # noqa: PLC0415 - a kind imports what it needs

        return load_published
    if architecture == "embedding":
        from laya.embedding import load_kind as load_embedding  # noqa: PLC0415

        return load_embedding
    raise ValueError(
        f"checkpoint {path}: architecture {shown(architecture)} is not known: expected 'embedding', or none for the "
        f"published format"
    )


def _download(repository: str, subfolder: str | None, revision: str | None, token: str | bool | None) -> Located:
    """Fetch one checkpoint's files, and none of the others that the repository holds."""
    prefix = glob.escape(subfolder.strip("/")) + "/" if subfolder else ""
    snapshot = Path(
        snapshot_download(
            repository, revision=revision, token=token, allow_patterns=[prefix + pattern for pattern in WANTED]
        )
    )
    path = snapshot / (subfolder or "")
    find_file(path, CONFIG)
    return Located(path, snapshot.name)
