"""The files of a checkpoint directory: finding, checking and reading them.

Every refusal names the checkpoint and the file. What the files mean is left to whoever reads them. Nothing here
ever writes: a file may be a link into a cache that other programs share.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from laya.questions import shown

_HEX_DIGITS = 64  # of a SHA-256


def find_file(root: Path, relative: str) -> Path:
    """The path of a file that a checkpoint must have.

    Raises:
        FileNotFoundError: it is not there.
    """
    path = root / relative
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint {root}: {relative} is missing")
    return path


def read_json(root: Path, relative: str) -> dict[str, Any]:
    """The JSON object in a file of the checkpoint.

    Raises:
        FileNotFoundError: the file is not there.
        ValueError: it does not hold a JSON object.
    """
    path = find_file(root, relative)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"checkpoint {root}: {relative} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"checkpoint {root}: {relative} must hold a JSON object, not {type(value).__name__}")
    return value


def check_digests(root: Path, expected: Mapping[str, str]) -> None:
    """Hold files of the checkpoint against SHA-256 digests in hex, by relative path.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: a file has another digest, or the table itself is malformed.
    """
    if not isinstance(expected, Mapping):
        raise ValueError(f"expected_sha256 must be a mapping of relative path to hex digest, not {shown(expected)}")
    for relative, digest in expected.items():
        _check_entry(relative, digest)
        with find_file(root, relative).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if not hmac.compare_digest(found, digest.strip().lower()):
            raise ValueError(
                f"checkpoint {root}: {relative} has the SHA-256 {found}, expected {digest}; "
                f"it is not the file that was reviewed"
            )


def check_relative(what: str, relative: object) -> str:
    """A path that stays within the directory it is relative to.

    Raises:
        ValueError: it is absolute, leads upwards, or is not a path at all.
    """
    if (
        not isinstance(relative, str)
        or not relative
        or "\\" in relative
        or PurePosixPath(relative).is_absolute()
        or ".." in PurePosixPath(relative).parts
    ):
        raise ValueError(f"{what} must be a path inside the checkpoint, with '/', not {shown(relative)}")
    return relative


def _check_entry(relative: object, digest: object) -> None:
    check_relative("a key of expected_sha256", relative)
    text = digest.strip().lower() if isinstance(digest, str) else ""
    if len(text) != _HEX_DIGITS or not set(text) <= set("0123456789abcdef"):
        raise ValueError(f"expected_sha256[{relative!r}] must be 64 hex digits, not {shown(digest)}")
