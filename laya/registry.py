"""The checkpoints of a Router by name: where each comes from, which are resident, and how its Agent is built.

Which of them answers a request, and the hooks around the answer, are `laya.router`'s; who is evicted is
`laya.residency`'s. Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from laya.identity import CheckpointIdentity, Foreseen
from laya.location import find_here
from laya.memory import Sizes
from laya.phases import LOAD, phase
from laya.residency import OnChange, Residency
from laya.sources import Source, Sources


class CheckpointRegistry:
    """Named checkpoints, some of them resident. Safe to call from many threads."""

    def __init__(
        self,
        models: Mapping[str, Source] | None,
        device: str | None,
        token: str | None,
        revision: str | None,
        revisions: Mapping[str, str | None] | None,
        sha256_digests: Mapping[str, Mapping[str, str] | None] | None,
        agent_kwargs: Mapping[str, Any] | None,
        *,
        max_loaded: int,
        max_memory: int | None,
        evict_first: bool,
        on_change: OnChange,
    ) -> None:
        """Register the checkpoints; none is loaded. The arguments are those of `Router`.

        Args:
            on_change: told of each change of what is resident, as `laya.residency.Residency` tells it.

        Raises:
            ValueError: `max_loaded` or `max_memory` below 1, or a name in `revisions` or `sha256_digests` that is not
                registered.
        """
        if isinstance(max_loaded, bool) or not isinstance(max_loaded, int) or max_loaded < 1:
            raise ValueError(f"max_loaded must be a positive number of checkpoints, got {max_loaded!r}")
        if max_memory is not None and max_memory < 1:
            raise ValueError(f"max_memory must be a positive number of bytes, got {max_memory!r}")
        self._sources = Sources(models)
        self.device, self.token = device, token
        self.revision = revision
        self.revisions = {self.resolve(name): value for name, value in (revisions or {}).items()}
        self.sha256_digests = {self.resolve(name): value for name, value in (sha256_digests or {}).items()}
        self.agent_kwargs = dict(agent_kwargs or {})
        self.max_memory = max_memory
        self._foreseen = Foreseen()
        self._sizes = Sizes(self._directory_of)
        self._on_change = on_change
        self._residency = self._make_residency(max_loaded, evict_first)

    @property
    def loaded(self) -> list[str]:
        """Names of the resident checkpoints, least recently used first."""
        return self._residency.names

    @property
    def max_loaded(self) -> int:
        """How many checkpoints stay resident; `attach` and `preload` raise it when they bring more.

        Bytes where `max_memory` was given.
        """
        return self._residency.max_loaded

    def estimate(self, name: str) -> int:
        """What a registered checkpoint takes of `max_loaded`: 1, or bytes as its files or its last load say."""
        return 1 if self.max_memory is None else self._sizes.estimate(self.resolve(name))

    @property
    def models(self) -> dict[str, Source | None]:
        """A copy of name to source, the built-in ones included; None for a checkpoint that was attached."""
        return self._sources.as_dict()

    def resolve(self, name: str) -> str:
        """The registered name that a name or alias means; ValueError that lists them if none."""
        return self._sources.resolve(name)

    def register(self, name: str, source: Source) -> str:
        """Make `source` known under `name` (or point a known name elsewhere), and return the registered name.

        A resident checkpoint of that name stays until it is unloaded or evicted.

        Raises:
            ValueError: a blank name, or a source that is neither a path, a Hub id nor (repository, subfolder).
        """
        registered = self._sources.register(name, source)
        self._residency.forget_failure(registered)
        return registered

    def identity(self, name: str) -> CheckpointIdentity | None:
        """What the checkpoint of this name answers from, for keys of a cache. Loads nothing and evicts nothing.

        Of a resident checkpoint what was loaded, of another what a load would find now; hashing its files takes
        seconds the first time and is remembered while they stay as they are. A load may find others: whoever keeps an
        answer compares the identity with `ctx.agent.identity`, which is what answered.

        Returns:
            None where it is not known: the files are not on this machine or a load would be refused, or an Agent was
            attached that has none.

        Raises:
            ValueError: the name means no registered checkpoint.
        """
        resolved = self.resolve(name)
        agent = self._residency.peek(resolved)
        if agent is not None:
            known = getattr(agent, "identity", None)
            return known if isinstance(known, CheckpointIdentity) else None
        if self._sources.describe(resolved) is None:
            return None
        return self._foreseen.identity(resolved, *self._load_of(resolved))

    def load(self, name: str) -> Any:
        """The Agent of a checkpoint, built if it is not resident: then `on_evict` and `on_load` fire, outside any lock.

        Raises:
            ValueError: the name means no registered checkpoint, or the checkpoint is refused.
            FileNotFoundError: its files are not there.
        """
        resolved = self.resolve(name)
        return self._residency.get(resolved, lambda: self._build(resolved))

    def preload(self, names: Sequence[str] | None = None) -> Self:
        """Load several checkpoints (None: every registered one) with room for all of them, and return self."""
        wanted = list(dict.fromkeys(self.resolve(name) for name in (self._sources if names is None else names)))
        self._residency.max_loaded = max(self._residency.max_loaded, sum(map(self.estimate, wanted)))
        for name in wanted:
            self.load(name)
        return self

    def attach(self, name: str, agent: Any) -> Any:
        """Make a finished Agent resident under `name`, known or new, and return it. No `on_load`: nothing was built."""
        self._residency.put(self._sources.add_without_source(name), agent)
        return agent

    def unload(self, name: str | None = None) -> None:
        """Let go of one checkpoint, or of all; `on_evict` fires for each that was resident."""
        names = self.loaded if name is None else [self.resolve(name)]
        dropped = [each for each in names if self._residency.drop(each)]
        if dropped:
            self._on_change(dropped, None)

    def _build(self, name: str) -> Any:
        from laya.agent import Agent  # noqa: PLC0415  # torch is imported when the first checkpoint is built

        repo, arguments = self._load_of(name)
        with phase(LOAD):
            return Agent(repo, **arguments)

    def _load_of(self, name: str) -> tuple[str, dict[str, Any]]:
        """From where and with which arguments the Agent of a name is built."""
        repo, subfolder = self._sources.place_of(name)
        arguments: dict[str, Any] = {
            "device": self.device,
            "token": self.token,
            "subfolder": subfolder,
            "revision": self.revisions.get(name, self.revision),
            "expected_sha256": self.sha256_digests.get(name),
        }
        return repo, arguments | self.agent_kwargs

    def _make_residency(self, max_loaded: int, evict_first: bool) -> Residency:
        if self.max_memory is None:
            return Residency(max_loaded, evict_first=evict_first, on_change=self._on_change)
        return Residency(
            self.max_memory,
            evict_first=evict_first,
            on_change=self._on_change,
            estimate=self._sizes.estimate,
            measure=self._sizes.measure,
        )

    def _directory_of(self, name: str) -> Path | None:
        """Where a checkpoint's files lie on this machine, None where they are not there yet."""
        repo, subfolder = self._sources.place_of(name)
        here = find_here(repo, subfolder=subfolder, revision=self.revisions.get(name, self.revision))
        return None if here is None else here.path
