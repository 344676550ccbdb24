"""What the files of a checkpoint contain, as digests: taken once, and remembered while the files stay as they are.

Hashing the weights of a large checkpoint takes a second or two, so a process does it once for each version of a file,
and threads that ask meanwhile share it. Which files a checkpoint is made of is said here; what they mean is not.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from laya.location import CONFIG

FILES: Final = (CONFIG, "model.safetensors")
DIRECTORIES: Final = ("encoder", "tokenizer")
"""What a checkpoint is made of; whatever else lies beside it, other checkpoints included, is not read."""

RACY_NS: Final = 2_000_000_000
"""A file that changed less than this before it was hashed may change again without showing it: clocks of file systems
tick as slowly as this. Its digest serves those who asked before it was hashed, and nobody later."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes with a file's content, as far as the file system says."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


Stamps = tuple[tuple[str, Stamp], ...]
"""The files of a checkpoint by relative path, in order, each with its stamp."""


@dataclass(slots=True)
class _Entry:
    """One file's digest, when its reading began, and the lock that lets one thread take it."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    stamp: Stamp | None = None
    digest: str = ""
    settled: bool = False
    begun: float = 0.0


_entries: dict[str, _Entry] = {}
_entries_lock = threading.Lock()


def stamps_of(root: Path) -> Stamps:
    """The files of the checkpoint in `root`, with what tells whether they are still the same.

    Raises:
        FileNotFoundError: it has no configuration.
        OSError: a file cannot be looked at.
    """
    found = [(CONFIG, _stamp(root / CONFIG))]
    for name in FILES[1:]:
        path = root / name
        if path.is_file():
            found.append((name, _stamp(path)))
    for name in DIRECTORIES:
        for folder, _, files in os.walk(root / name, followlinks=True):
            found += [
                ((path := Path(folder, file)).relative_to(root).as_posix(), _stamp(path)) for file in sorted(files)
            ]
    return tuple(sorted(found, key=lambda one: one[0]))


def content_digest(root: Path, stamps: Stamps) -> str:
    """SHA-256, in hex, over names and contents of these files.

    Raises:
        FileChanged: one of them is no longer what its stamp says.
        OSError: one of them cannot be read.
    """
    whole = hashlib.sha256()
    for name, stamp in stamps:
        for part in (name, file_digest(root / name, stamp)):
            # The length in front, so that no two lists of files read the same.
            whole.update(f"{len(part.encode())}:{part}".encode())
    return whole.hexdigest()


def file_digest(path: Path, stamp: Stamp) -> str:
    """SHA-256, in hex, of one file; taken once for each stamp, by one thread for all that ask meanwhile.

    Raises:
        FileChanged: the file is no longer what its stamp says.
        OSError: it cannot be read.
    """
    asked = time.monotonic()
    with _entries_lock:
        entry = _entries.setdefault(str(path), _Entry())
    with entry.turn:
        if entry.stamp == stamp and (entry.settled or entry.begun >= asked):
            return entry.digest
        begun, now = time.monotonic(), time.time_ns()
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if _stamp(path) != stamp:
            raise FileChanged(f"{path} was changed while it was read")
        entry.stamp, entry.digest, entry.begun = stamp, digest, begun
        entry.settled = abs(now - max(stamp.mtime_ns, stamp.ctime_ns)) > RACY_NS
        return digest


def differing(root: Path, stamps: Stamps, expected: Mapping[str, str]) -> str | None:
    """The first of these relative paths whose file is missing or has another SHA-256 than expected, or None.

    Raises:
        FileChanged, OSError: as `file_digest`.
    """
    known = dict(stamps)
    for relative, digest in expected.items():
        path = root / relative
        if not path.is_file() or file_digest(path, known.get(relative) or _stamp(path)) != digest.strip().lower():
            return relative
    return None


class FileChanged(OSError):
    """A file of a checkpoint is being replaced at this moment."""


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
