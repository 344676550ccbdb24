"""A hook that writes down whose each request is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hooks.scope import current
from laya import BaseHook


class Whose(BaseHook):
    """Appends `whose TENANT STATE` to the file that JOURNAL names."""

    def on_predict_start(self, ctx: Any) -> None:
        with Path(os.environ["JOURNAL"]).open("a") as journal:
            journal.writelines(f"whose {current().namespace} {state}\n" for state in ctx.states)
