"""What lies in a cache, for a person: counted, looked at, cleared, without holding up anybody else's commands.

A server answers one command at a time, so that everything here is done in steps of some hundred keys. What a key and a
value are made of is `hooks.cache_key`'s and `hooks.cache_value`'s.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import redis

from hooks import cache_value
from hooks.cache_key import pattern

STEP: Final = 500
"""Keys of one command: about a tenth of a millisecond of the server's time."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Name:
    """What the name of an entry tells: whose it is (None: the deployment's own), which checkpoint, the digest."""

    tenant: str | None
    checkpoint: str
    digest: str


@dataclass(frozen=True, slots=True)
class Share:
    """What one tenant has of one checkpoint: entries, and bytes of their values as they are stored."""

    tenant: str | None
    checkpoint: str
    entries: int
    size: int


@dataclass(frozen=True, slots=True)
class Stored:
    """One entry.

    Attributes:
        key: its name in the server.
        name: what that tells.
        left: seconds until it expires, None for one that never does.
        size: bytes as stored.
        text_size: bytes of the text, None where the value is damaged.
        compressed: whether it is stored in fewer bytes than its text has.
        result: the answers, None where the value is damaged.
    """

    key: str
    name: Name
    left: float | None
    size: int
    text_size: int | None
    compressed: bool
    result: dict[str, Any] | None


class Administration:
    """The entries of one deployment in one server."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        """Look after `namespace`'s entries over this client, whose replies are bytes."""
        self._client = client
        self._namespace = namespace

    def shares(self) -> list[Share]:
        """All entries, counted by tenant and checkpoint, the deployment's own first."""
        counts: defaultdict[tuple[str | None, str], list[int]] = defaultdict(lambda: [0, 0])
        for keys in self._steps(pattern(self._namespace)):
            for key, size in zip(keys, self._sizes(keys), strict=True):
                name = self.name_of(key.decode())
                if name is not None and size:
                    count = counts[name.tenant, name.checkpoint]
                    count[0] += 1
                    count[1] += size
        shares = [Share(tenant, checkpoint, *count) for (tenant, checkpoint), count in counts.items()]
        return sorted(shares, key=lambda share: (share.tenant or "", share.checkpoint))

    def count(self, tenant: str | None = None, checkpoint: str | None = None) -> int:
        """How many entries `clear` would remove now."""
        return sum(len(keys) for keys in self._steps(pattern(self._namespace, tenant, checkpoint)))

    def clear(self, tenant: str | None = None, checkpoint: str | None = None) -> int:
        """Remove entries, all or of one tenant (empty: the deployment's own) or checkpoint; how many there were.

        What is being computed meanwhile is kept when it is done: it is right, whenever it was computed.
        """
        removed = 0
        for keys in self._steps(pattern(self._namespace, tenant, checkpoint)):
            removed += self._client.unlink(*keys)
        return removed

    def find(self, key: str) -> Stored | None:
        """The entry of this name, or of this digest."""
        if _DIGEST.fullmatch(key):
            match = f"{pattern(self._namespace)[:-1]}{key}"
            key = next((found.decode() for keys in self._steps(match) for found in keys), key)
        name = self.name_of(key)
        if name is None:
            return None
        pipeline = self._client.pipeline(transaction=False)
        pipeline.get(key)
        pipeline.pttl(key)
        data, left = pipeline.execute(raise_on_error=False)
        if not isinstance(data, bytes):
            return None
        size, seconds = len(data), left / 1000 if left >= 0 else None
        try:
            text = cache_value.unpack(data)
            result = cache_value.result_of(text, name.digest)
        except cache_value.Unusable:
            return Stored(key, name, seconds, size, None, compressed=False, result=None)
        return Stored(key, name, seconds, size, len(text), compressed=len(text) >= size, result=result)

    def name_of(self, key: str) -> Name | None:
        """What the name of an entry of this deployment tells, None for another key."""
        prefix, *parts = key.split(":")
        if prefix != pattern(self._namespace).partition(":")[0] or len(parts) != 3:
            return None
        tenant, checkpoint, digest = parts
        return Name(unquote(tenant) or None, unquote(checkpoint), digest) if _DIGEST.fullmatch(digest) else None

    def _steps(self, match: str) -> Iterator[list[bytes]]:
        """Keys that match, some hundred at a time, each once as long as nobody writes meanwhile."""
        cursor = 0
        while True:
            cursor, found = self._client.scan(cursor, match=match, count=STEP)
            if found:
                yield [key for key in found if isinstance(key, bytes)]
            if cursor == 0:
                return

    def _sizes(self, keys: list[bytes]) -> list[int]:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.strlen(key)
        # One that has gone meanwhile has no length, and one of another kind is none of ours.
        return [size if isinstance(size, int) else 0 for size in pipeline.execute(raise_on_error=False)]
