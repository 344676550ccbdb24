"""What makes two checkpoints answer alike: the facts that a cache must put into its keys, known without loading one.

A checkpoint's answers follow from its files, the precision that it computes in, its temperatures and its budgets.
Reading and remembering what files contain is `laya.digests`' work; what a cache makes of an identity is its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property

from laya.decoding import primary_subtag


@dataclass(frozen=True)
class CheckpointIdentity:
    """Equal for checkpoints that give equal answers to equal requests, wherever their files lie.

    Attributes:
        content: `sha256:<hex>` over the names and contents of the files, or `<repository>[/<subfolder>]@<commit>`
            where they are a Hub repository's at a known commit.
        dtype: the precision of a forward pass: `fp32`, `bf16` or `fp16`.
        calibration: SHA-256, in hex, over the temperatures that apply, those of languages included.
        max_len, head_max_len: the budgets of a call that brings none.
        languages: primary subtags of the languages with temperatures of their own, sorted.
    """

    content: str
    dtype: str
    calibration: str
    max_len: int
    head_max_len: int
    languages: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, over all fields: one text to put into a key."""
        parts = (repr((field.name, getattr(self, field.name))).encode() for field in fields(self))
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def language(self, lang: str | None) -> str | None:
        """The part of `lang` that changes an answer: its primary subtag where that has temperatures, else None."""
        subtag = primary_subtag(lang) if lang else None
        return subtag if subtag in self.languages else None
