"""A hook that misbehaves when a state asks for it: what the soak's bad requests do inside a worker."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from laya import BaseHook


class Misbehave(BaseHook):
    """`nap SECONDS`, `raise`, `hang`, `die`; any other state is an ordinary one."""

    def on_predict_start(self, ctx: Any) -> None:
        """Do what the state says."""
        verb, _, what = str(ctx.states[0]).partition(" ")
        if verb == "nap":
            time.sleep(float(what))
        elif verb == "raise":
            raise RuntimeError("as asked")
        elif verb == "hang":
            time.sleep(3600)
        elif verb == "die":
            os.kill(os.getpid(), signal.SIGKILL)
