"""The checkpoints of a deployment, as LAYA_CHECKPOINTS lists them.

A backend reads only their names: they are what a message may name, and each has its queue. Workers also read
where each comes from. Loading one is the library's work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from laya.catalog import ALIASES, DEFAULT_MODELS, ENGLISH, MULTILINGUAL, canonical_name, normalise_name

SMALL: Final = "small"
"""The entry that stands for the two small checkpoints of `laya.small`."""

QUEUE_PREFIX: Final = "laya"

# A name becomes part of a queue's name and of a metric's label.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PATH_STARTS: Final = ("/", "./", "../", "~")


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """One registered checkpoint.

    ``source`` is a directory, a Hub repository, or None when only the name was given: then it is the built-in
    place of that name, which only a worker needs to know. ``small`` marks a checkpoint that `laya.small` builds.
    """

    name: str
    source: str | None = None
    subfolder: str | None = None
    revision: str | None = None
    small: bool = False

    @property
    def is_path(self) -> bool:
        """Whether the source is a directory of this machine rather than a Hub repository."""
        return self.source is not None and self.source.startswith(_PATH_STARTS)

    @property
    def path(self) -> str:
        """The directory, with the home directory spelled out."""
        return str(Path(self.source or "").expanduser())


BUILT_IN: Final = tuple(CheckpointSource(name) for name in DEFAULT_MODELS)
"""What is registered when nothing is said: the published checkpoints."""


def parse_checkpoints(text: str) -> tuple[CheckpointSource, ...]:
    """Read ``english=/path,multilingual=repo:subfolder@revision,small``.

    An entry is a name, or a name with ``=`` and its source: a directory (``/…``, ``./…``, ``../…`` or ``~…``),
    or a Hub repository with an optional ``:subfolder`` and ``@revision``. ``small`` stands for the two small
    checkpoints, ``english`` and ``multilingual``.

    Raises:
        ValueError: an entry cannot be read, or two have one name; the message names it.
    """
    found: dict[str, CheckpointSource] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        for checkpoint in _parse_entry(entry):
            if checkpoint.name in found:
                raise ValueError(f"LAYA_CHECKPOINTS names {checkpoint.name!r} twice: give each a name of its own")
            found[checkpoint.name] = checkpoint
    if not found:
        raise ValueError("LAYA_CHECKPOINTS names no checkpoint: leave it unset for the published ones")
    return tuple(found.values())


def default_of(names: Iterable[str], wanted: str | None) -> str:
    """The registered name that undecided requests go to.

    ``wanted`` if given, else ``multilingual`` where it is registered, else the first name.

    Raises:
        ValueError: ``wanted`` is not registered.
    """
    known = tuple(names)
    if wanted is None:
        return MULTILINGUAL if MULTILINGUAL in known else known[0]
    try:
        return canonical_name(wanted, known)
    except ValueError as error:
        raise ValueError(f"LAYA_DEFAULT_MODEL: {error}; LAYA_CHECKPOINTS lists them") from None


def queue_of(checkpoint: str) -> str:
    """The name of the queue that holds the requests for a registered checkpoint."""
    return f"{QUEUE_PREFIX}.{checkpoint}"


def checkpoint_of(queue: str) -> str | None:
    """The checkpoint whose requests a queue of that name holds; None for another queue."""
    prefix, dot, checkpoint = queue.partition(".")
    return checkpoint if prefix == QUEUE_PREFIX and dot else None


def _parse_entry(entry: str) -> tuple[CheckpointSource, ...]:
    name, given, source = entry.partition("=")
    name, source = normalise_name(name), source.strip()
    if name == SMALL and not given:
        return (CheckpointSource(ENGLISH, small=True), CheckpointSource(MULTILINGUAL, small=True))
    name = ALIASES.get(name, name)
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"LAYA_CHECKPOINTS: {name!r} cannot be a checkpoint's name: use up to 64 of a-z, 0-9, '.', '_', '-'"
        )
    if not given:
        return (CheckpointSource(name),)
    if not source:
        raise ValueError(f"LAYA_CHECKPOINTS: {name!r} has no source after its '='")
    if source.startswith(_PATH_STARTS):
        return (CheckpointSource(name, source),)
    return (_hub_source(name, source),)


def _hub_source(name: str, source: str) -> CheckpointSource:
    """A Hub repository with its optional subfolder and revision."""
    place, at, revision = source.partition("@")
    repository, colon, subfolder = place.partition(":")
    if not repository or (at and not revision) or (colon and not subfolder):
        raise ValueError(
            f"LAYA_CHECKPOINTS: cannot read the source of {name!r}: expected a directory, or "
            "repository[:subfolder][@revision]"
        )
    return CheckpointSource(name, repository, subfolder or None, revision or None)
