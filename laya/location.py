"""Where the files of a checkpoint lie: a built-in name, a directory, or a repository on the Hub.

Downloads what is not there yet, and of a repository only the wanted checkpoint's files. Needs no torch, so that a
program can fetch without loading; reading the files is left to :mod:`laya.checkpoint`.
"""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from laya.catalog import ALIASES, DEFAULT_MODELS, canonical_name, normalise_name
from laya.files import check_relative, find_file
from laya.questions import shown

CONFIG = "rl_agent_config.json"

WANTED = (CONFIG, "model.safetensors", "tokenizer/*", "encoder/*")
"""The files of one checkpoint. A repository may hold several, each under its own subfolder."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Located:
    """Where a checkpoint's files lie; when they came from the Hub, `repository[/subfolder]` and their commit."""

    path: Path
    revision: str | None = None
    repository: str | None = None


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
    place = _place_of(source, subfolder)
    return place if isinstance(place, Located) else _download(*place, revision, token)


def _place_of(source: str | Path, subfolder: str | None) -> Located | tuple[str, str | None]:
    """The directory, or (repository, subfolder) on the Hub."""
    name = normalise_name(source) if isinstance(source, str) else ""
    if name in DEFAULT_MODELS or name in ALIASES:
        repository, its_own = DEFAULT_MODELS[canonical_name(name, DEFAULT_MODELS)]
        return repository, subfolder or its_own
    directory = Path(source).expanduser()
    if directory.is_dir():
        return Located(directory / (subfolder or ""))
    if isinstance(source, str) and _HUB_ID.fullmatch(source):
        return source, subfolder
    if isinstance(source, str) and not set(source) & {"/", "\\"}:
        raise ValueError(
            f"unknown checkpoint {shown(source)}: it is not one of {', '.join(DEFAULT_MODELS)}, not a directory, "
            f"and not a Hub id such as owner/repository"
        )
    raise FileNotFoundError(f"checkpoint {str(source)!r}: there is no such directory")


def find_here(source: str | Path, *, subfolder: str | None = None, revision: str | None = None) -> Located | None:
    """What `locate` would find, if it is on this machine already; of a branch or tag, the commit that is here.

    Raises:
        FileNotFoundError, ValueError: as `locate`.
    """
    if subfolder is not None:
        check_relative("subfolder", subfolder)
    place = _place_of(source, subfolder)
    return place if isinstance(place, Located) else _downloaded(*place, revision)


def _downloaded(repository: str, subfolder: str | None, revision: str | None) -> Located | None:
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - as below

    prefix = subfolder.strip("/") + "/" if subfolder else ""
    found = try_to_load_from_cache(repository, prefix + CONFIG, revision=revision)
    if not isinstance(found, str):
        return None
    path = Path(found).parent
    depth = len(PurePosixPath(prefix).parts)
    return Located(path, (path.parents[depth - 1] if depth else path).name, f"{repository}/{prefix}".rstrip("/"))


def _download(repository: str, subfolder: str | None, revision: str | None, token: str | bool | None) -> Located:
    """Fetch one checkpoint's files, and none of the others that the repository holds."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - a local checkpoint needs no client

    prefix = glob.escape(subfolder.strip("/")) + "/" if subfolder else ""
    snapshot = Path(
        snapshot_download(
            repository, revision=revision, token=token, allow_patterns=[prefix + pattern for pattern in WANTED]
        )
    )
    path = snapshot / (subfolder or "")
    find_file(path, CONFIG)
    return Located(path, snapshot.name, f"{repository}/{subfolder or ''}".rstrip("/"))
