"""The key of a cached answer: equal for requests that a checkpoint cannot tell apart, different for all others.

A key is a digest over everything that the answer depends on. Its name in Redis also shows, in front of the digest,
whose it is and which checkpoint answered, so that entries can be counted and cleared by either.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any, Final, Protocol
from urllib.parse import quote

from hooks import cache_json

KEY_VERSION: Final = 1
"""It rises when a key of the same request is made of other parts."""


class Identity(Protocol):
    """What is asked of `laya.identity.CheckpointIdentity`."""

    @property
    def content(self) -> str:
        """Stands for the content of the checkpoint's files."""

    @property
    def dtype(self) -> str:
        """The precision of a forward pass."""

    @property
    def calibration(self) -> str:
        """Stands for the temperatures."""

    @property
    def max_len(self) -> int:
        """The token budget of a row, for a call that brings none."""

    @property
    def head_max_len(self) -> int:
        """The token budget of a question, for a call that brings none."""

    def language(self, lang: str | None) -> str | None:
        """The part of a language code that changes an answer, None where none does."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where entries lie: the deployment's namespace, the tenant (None: the deployment's own), the checkpoint's name."""

    namespace: str
    tenant: str | None
    checkpoint: str


@dataclass(frozen=True, slots=True)
class CacheKey:
    """The key of one request.

    Attributes:
        digest: SHA-256, in hex, over all that the answer depends on.
        entry: name of the value in Redis.
        lease: name of the lease of whoever computes it.
    """

    digest: str
    entry: str
    lease: str


def make_key(
    place: Place,
    identity: Identity,
    state: Any,
    questions: Any,
    *,
    lang: str | None = None,
    max_len: int | None = None,
    head_max_len: int | None = None,
) -> CacheKey | None:
    """The key of a request; None where JSON cannot express it, or a budget is none.

    Args:
        place: whose entry it is, of which checkpoint.
        identity: the checkpoint's.
        state, questions: as the checkpoint sees them, after all hooks that rewrite them.
        lang, max_len, head_max_len: of the call; None means none, and the checkpoint's own budgets.
    """
    budgets = (
        identity.max_len if max_len is None else max_len,
        identity.head_max_len if head_max_len is None else head_max_len,
    )
    if any(type(budget) is not int for budget in budgets) or not (lang is None or type(lang) is str):
        return None
    try:
        # A tenant by the name of None is not the deployment's own: JSON tells them apart.
        facts = place.tenant, identity.content, identity.dtype, identity.calibration
        head = _head(*facts, *budgets, identity.language(lang))
        state_form, state_text = cache_json.dumps(state)
        questions_form, questions_text = cache_json.dumps_repeated(questions)
    except cache_json.NotJson:
        return None
    digest = _digest(_VERSION, head, state_form.encode(), state_text, questions_form.encode(), questions_text)
    shown = f"{_shown(place.tenant or '')}:{_shown(place.checkpoint)}:{digest}"
    return CacheKey(digest, f"{place.namespace}.cache:{shown}", f"{place.namespace}.cache-lease:{shown}")


@lru_cache(maxsize=256, typed=True)
def _head(*facts: str | int | None) -> bytes:
    """The text of what is the same for many requests."""
    return cache_json.dumps(list(facts))[1]


def pattern(namespace: str, tenant: str | None = None, checkpoint: str | None = None, *, leases: bool = False) -> str:
    """The pattern for `SCAN` that matches a deployment's entries, of one tenant or one checkpoint if given.

    The empty tenant is the deployment's own.
    """
    tenant_part = "*" if tenant is None else _shown(tenant)
    checkpoint_part = "*" if checkpoint is None else _shown(checkpoint)
    return f"{namespace}.cache{'-lease' if leases else ''}:{tenant_part}:{checkpoint_part}:*"


@lru_cache(maxsize=256)
def _shown(name: str) -> str:
    """A name as a part of a key: without the separator, and without what means something in a pattern."""
    return quote(name, safe="", errors="surrogatepass")


def _digest(*parts: bytes) -> str:
    """SHA-256, in hex, over parts, each with its length in front, so that no two lists of parts read the same."""
    return hashlib.sha256(b"".join([piece for part in parts for piece in (b"%d:" % len(part), part)])).hexdigest()


def _version(names: Iterable[str]) -> bytes:
    """What computes, beside the checkpoint: another release may read a request otherwise."""
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} of a checkout")
    return "\n".join([f"key {KEY_VERSION}", *found]).encode()


_VERSION: Final = _version(["laya-workers"])
