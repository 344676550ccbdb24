"""The hooks that LAYA_HOOKS names: imported, and made, or refused in one line that says why."""

from __future__ import annotations

import importlib
from typing import Any


class HookUnavailable(Exception):
    """LAYA_HOOKS names something that cannot be imported, or that makes no hook."""


def make_hook(path: str) -> Any:
    """The hook that a dotted path names: what it names is called without arguments.

    Raises:
        HookUnavailable: it cannot be imported, is not callable, or fails when called. A module can raise anything
            while it is imported, also end its process.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise HookUnavailable(f"LAYA_HOOKS: {path!r} is no dotted path: write module.Class")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        raise HookUnavailable(f"LAYA_HOOKS: {path!r} cannot be imported: {_told(error)}") from error
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise HookUnavailable(f"LAYA_HOOKS: {path}() failed: {_told(error)}") from error


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
