"""What makes two checkpoints answer alike: the facts that a cache must put into its keys, known without loading one.

A checkpoint's answers follow from its files, the precision that it computes in, its temperatures and its budgets.
Reading and remembering what files contain is `laya.digests`' work; what a cache makes of an identity is its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from laya.decoding import Calibration, calibration_of, primary_subtag
from laya.digests import Stamps, content_digest, differing, stamps_of
from laya.location import Located, find_here

_COMMIT = re.compile(r"[0-9a-f]{40}")


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


def make_identity(content: str, dtype: str, config: Mapping[str, Any], calibration: Calibration) -> CheckpointIdentity:
    """The identity of a checkpoint with this content, precision, configuration and calibration."""
    return CheckpointIdentity(
        content,
        dtype,
        _digest_of(calibration),
        config["max_len"],
        config["head_max_len"],
        tuple(sorted(calibration.languages)),
    )


def content_of(located: Located, stamps: Stamps) -> str:
    """What stands for the content of the files: their commit if they came from the Hub, else a digest of them.

    Raises:
        OSError: a file cannot be read, or is being replaced.
    """
    if located.repository is not None and located.revision is not None and _COMMIT.fullmatch(located.revision):
        return f"{located.repository}@{located.revision}"
    return f"sha256:{content_digest(located.path, stamps)}"


class ContentBesideLoad:
    """What stands for a checkpoint's content, found out beside its load: hashing and loading read the same bytes."""

    def __init__(self, located: Located) -> None:
        """Begin, in a thread of its own."""
        self._located = located
        self._stamps: Stamps | None = None
        self._digest: Future[str] | None = None
        try:
            self._stamps = stamps_of(located.path)
        except OSError:  # what is missing is refused, by its name, where it is read
            return
        beside = ThreadPoolExecutor(1, thread_name_prefix="laya-digest")
        self._digest = beside.submit(content_of, located, self._stamps)
        beside.shutdown(wait=False)

    def known(self) -> str | None:
        """Wait for it; None where the files are no longer those that the load began with."""
        if self._digest is None:
            return None
        try:
            digest = self._digest.result()
            return digest if stamps_of(self._located.path) == self._stamps else None
        except OSError:
            return None


class Foreseen:
    """Identities of checkpoints as they would be loaded now. Safe to use from many threads.

    What was found out about a name holds as long as its files and the arguments of its load stay the same.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[str, tuple[str, Stamps, CheckpointIdentity]] = {}

    def identity(self, name: str, source: str, options: Mapping[str, Any]) -> CheckpointIdentity | None:
        """The identity that an Agent would have, loaded from `source` with these arguments.

        None where the files are not on this machine, or a load would be refused: it says itself why.
        """
        try:
            located = find_here(source, subfolder=options.get("subfolder"), revision=options.get("revision"))
            if located is None:
                return None
            stamps = stamps_of(located.path)
            asked = repr((str(located.path), *((key, options.get(key)) for key in _THAT_COUNT)))
            known = self._known.get(name)
            if known is not None and known[:2] == (asked, stamps):
                return known[2]
            identity = _foresee(located, stamps, options)
        except Exception:  # noqa: BLE001  # whatever is wrong with the checkpoint, it is the load's to say
            return None
        if identity is not None:
            self._known[name] = asked, stamps, identity
        return identity


_THAT_COUNT = ("revision", "device", "dtype", "lang_temperatures", "expected_sha256")
"""Arguments of a load that change what it makes of the same files."""


def _foresee(located: Located, stamps: Stamps, options: Mapping[str, Any]) -> CheckpointIdentity | None:
    from laya.checkpoint import foresee_dtype, read_config  # noqa: PLC0415  # needs torch, and whoever serves has it

    expected = options.get("expected_sha256")
    if expected is not None and differing(located.path, stamps, expected):
        return None
    config = read_config(located.path)
    calibration = calibration_of(config, options.get("lang_temperatures"), str(located.path))
    dtype = foresee_dtype(config, options.get("device"), options.get("dtype"))
    identity = make_identity(content_of(located, stamps), dtype, config, calibration)
    return identity if stamps_of(located.path) == stamps else None


def _digest_of(calibration: Calibration) -> str:
    text = json.dumps(_plain(calibration), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(calibration: Calibration) -> dict[str, Any]:
    return {
        "by_type": calibration.by_type,
        "by_bucket": dict(calibration.by_bucket),
        "languages": {language: _plain(own) for language, own in calibration.languages.items()},
    }
