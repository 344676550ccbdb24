"""The checkpoints that one Router knows by name, and where each of them comes from.

Names are `laya.catalog`'s, with those that a caller registers. Building an Agent from a source, and keeping it, is the
Router's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from laya.catalog import DEFAULT_MODELS, canonical_name, describe_source, normalise_name

Source = str | tuple[str, str | None]
"""Where a checkpoint comes from: a directory, a Hub id, or (repository, subfolder)."""


class Sources:
    """Name to source, the built-in ones included; a name without a source is one that was attached."""

    def __init__(self, models: Mapping[str, Source] | None = None) -> None:
        """Know the built-in names and `models`, which may point a built-in name elsewhere."""
        self._sources: dict[str, Source | None] = dict(DEFAULT_MODELS)
        for name, source in (models or {}).items():
            self.register(name, source)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names that are known now."""
        return iter(list(self._sources))

    def as_dict(self) -> dict[str, Source | None]:
        """A copy of name to source."""
        return dict(self._sources)

    def resolve(self, name: str) -> str:
        """The known name that a name or alias means; ValueError that lists them if none."""
        return canonical_name(name, self._sources)

    def register(self, name: str, source: Source) -> str:
        """Make `source` known under `name`, or point a known name elsewhere; return the name as it is known.

        Raises:
            ValueError: a blank name, or a source that is neither a path, a Hub id nor (repository, subfolder).
        """
        known = self._known_as(name)
        if isinstance(source, str) and source.strip():
            self._set(known, source)
        elif isinstance(source, tuple | list) and len(source) == 2 and isinstance(source[0], str):
            self._set(known, (source[0], source[1]))
        else:
            expected = "expected a path, a Hub id or (repository, subfolder)"
            raise ValueError(f"checkpoint {name!r}: {expected}, got {source!r}")
        return known

    def add_without_source(self, name: str) -> str:
        """Make `name` known for an attached Agent, keeping the source that it may have; return it as it is known."""
        known = self._known_as(name)
        if known not in self._sources:
            self._set(known, None)
        return known

    def place_of(self, name: str) -> tuple[str, str | None]:
        """(repository or directory, subfolder) of a known name.

        Raises:
            ValueError: the name was attached, so there is nothing to build it from.
        """
        source = self._sources[name]
        if source is None:
            raise ValueError(
                f"checkpoint {name!r} was attached and is no longer resident: attach it again, or register a source"
            )
        return (source, None) if isinstance(source, str) else source

    def describe(self, name: str) -> str | None:
        """A known name's source as one line, None for one that was attached."""
        source = self._sources[name]
        return None if source is None else describe_source(source)

    def _set(self, name: str, source: Source | None) -> None:
        # A new table, because other threads may be reading names from the old one.
        self._sources = {**self._sources, name: source}

    def _known_as(self, name: str) -> str:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"a checkpoint's name must be a non-blank string, got {name!r}")
        try:
            return self.resolve(name)
        except ValueError:
            return normalise_name(name)
