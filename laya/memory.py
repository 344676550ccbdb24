"""How much memory checkpoints take: measured of those that were loaded, estimated from their files before that.

Counts parameters and buffers, which is what a resident checkpoint costs for as long as it is resident. What a forward
pass needs besides is for a while only, and is bounded by `laya.batching`. Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_UNITS: Final = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_BYTES: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Read `6GiB`, `800MB`, `1.5 GiB` as bytes.

    Raises:
        ValueError: it is no such amount.
    """
    found = _BYTES.fullmatch(text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is no amount of memory: write a number and a unit, such as 6GiB or 800MB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def bytes_of(agent: Any) -> int:
    """Bytes of an Agent's parameters and buffers on their device; those that several modules share count once."""
    model = agent.model
    if model is None:  # computed without a torch module
        return 0
    seen = {id(tensor): tensor for tensors in (model.parameters(), model.buffers()) for tensor in tensors}
    return sum(tensor.numel() * tensor.element_size() for tensor in seen.values())


def bytes_on_disk(directory: Path) -> int:
    """Bytes of the weights in a checkpoint's directory: what a load takes at most where it does not widen them."""
    return sum(file.stat().st_size for file in directory.glob("**/*.safetensors"))


class Sizes:
    """What the checkpoints of a Router take: as measured at their last load, else as their files say."""

    def __init__(self, directory_of: Callable[[str], Path | None]) -> None:
        """Take where a checkpoint's files lie on this machine, None where they are not there yet."""
        self._directory_of = directory_of
        self._measured: dict[str, int] = {}

    def estimate(self, name: str) -> int:
        """Bytes that a checkpoint takes, or will take; 1 where nothing is known of it."""
        if name not in self._measured:
            try:
                directory = self._directory_of(name)
                return max(1, 0 if directory is None else bytes_on_disk(directory))
            except (OSError, ValueError):  # what is wrong with it, its load says
                return 1
        return self._measured[name]

    def measure(self, name: str, agent: Any) -> int:
        """Bytes that a checkpoint takes now that it is loaded."""
        self._measured[name] = max(1, bytes_of(agent))
        return self._measured[name]
