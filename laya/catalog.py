"""The checkpoints that the library knows by name: where they are published, aliases, reviewed commits.

Everything here is data and one look-up. Loading a checkpoint is `laya.checkpoint`'s work, keeping several in
memory `laya.router`'s, and choosing one for a request `laya.routing`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from laya.questions import shown

ENGLISH: Final = "english"
MULTILINGUAL: Final = "multilingual"
TYPED_DECISIONS: Final = "typed-decisions"

DEFAULT_MODELS: Final[Mapping[str, tuple[str, str | None]]] = {
    ENGLISH: ("convaiinnovations/laya", None),
    MULTILINGUAL: ("convaiinnovations/laya", "multilingual"),
    TYPED_DECISIONS: ("convaiinnovations/laya", "typed-decisions"),
}
"""Checkpoint name to (Hub repository, subfolder); a subfolder of None is the repository's root."""

ALIASES: Final[Mapping[str, str]] = {
    "en": ENGLISH,
    "laya": ENGLISH,
    "default": ENGLISH,
    "multi": MULTILINGUAL,
    "ml": MULTILINGUAL,
    "laya-multilingual": MULTILINGUAL,
    "typed": TYPED_DECISIONS,
    "typed_decisions": TYPED_DECISIONS,
    "laya-typed-decisions": TYPED_DECISIONS,
    "decisions": TYPED_DECISIONS,
}
"""Other spellings of the built-in names. A checkpoint registered under one of them takes it over."""

PINNED_REVISIONS: Final[Mapping[str, str]] = {
    "convaiinnovations/laya": "55cf4c4ebb4ebe31b2550e8bdf3bd21b99753851",
    "convaiinnovations/laya-multilingual": "e4e9ddf21a7b1903b7acffd8814ad4307bf63a67",
    "convaiinnovations/laya-typed-decisions": "1a793eb568e6718f15941d08f85432581df534e3",
}
"""Hub repository to its reviewed commit, for callers who pin. Nothing in the library pins unasked."""


def normalise_name(name: str) -> str:
    """The form in which checkpoint names are compared: trimmed and in lower case."""
    return name.strip().lower()


def canonical_name(name: str, known: Collection[str]) -> str:
    """The member of `known` that `name` means: the same name in any case, or the one an alias stands for.

    A registered name goes before an alias of the same spelling.

    Raises:
        ValueError: `name` is not a string, or means none of `known`; the message lists them.
    """
    if isinstance(name, str) and name in known and name == normalise_name(name):
        return name
    spelled = {normalise_name(entry): entry for entry in known}
    if isinstance(name, str):
        wanted = normalise_name(name)
        for candidate in (wanted, ALIASES.get(wanted)):
            if candidate is not None and candidate in spelled:
                return spelled[candidate]
    raise ValueError(f"unknown checkpoint {shown(name)}: expected one of {_listed(spelled.values())}")


def describe_source(source: object) -> str:
    """One line for a checkpoint's source: `repo`, or `repo/subfolder` for a (repo, subfolder) pair."""
    if isinstance(source, tuple | list) and len(source) == 2:
        repo, subfolder = source
        return f"{repo}/{subfolder}" if subfolder else str(repo)
    return str(source)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(entry) for entry in sorted(names)) or "(none is registered)"
