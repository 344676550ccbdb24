"""The modules that LAYA_HOOKS names, imported before the hooks are made: so that one that fails says so in one line.

A module can raise anything while it is imported, also end its process. Making the hooks is `worker.serving_router`'s.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from worker.serving_router import HookNotFound


def import_modules(paths: Sequence[str]) -> None:
    """Import the module of each dotted path.

    Raises:
        HookNotFound: one cannot be imported, whatever it raised.
    """
    for path in paths:
        module, _, _ = path.rpartition(".")
        try:
            if module:
                importlib.import_module(module)
        except (Exception, SystemExit) as error:
            told = f"{type(error).__name__}: {error}".rstrip(": ")
            raise HookNotFound(f"LAYA_HOOKS: {path!r} cannot be imported: {told}") from error
