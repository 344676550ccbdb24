"""A hook that ends its worker when a state asks for it, and writes down what began and ended where."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import signals

from laya import BaseHook


class Deadly(BaseHook):
    """Does what the state says, in order: `die SIGKILL; …`.

    `die SIGNAL`, `exit CODE`, `nap SECONDS`; `sick` dies until it is cured, `wait` waits for that; `hold` waits until a
    worker has died, `until NAME` until `Deployment.let_go(NAME)`; `die-answered` dies once its answer is stored and not
    yet acknowledged, if none has died before.
    """

    def __init__(self) -> None:
        self._journal = Path(os.environ["JOURNAL"])
        self._deaths = self._journal.with_suffix(".deaths")
        self._deaths.touch()
        signals.task_postrun.connect(self._answered, weak=False)

    def on_predict_start(self, ctx: Any) -> None:
        for state in map(str, ctx.states):
            self._note(f"begin {os.getpid()} {state}")
            for command in state.split(";"):
                verb, _, what = command.strip().partition(" ")
                self._obey(verb, what)

    def on_predict_end(self, ctx: Any) -> None:
        if ctx.error is None:
            for state in ctx.states:
                self._note(f"end {os.getpid()} {state}")

    def _obey(self, verb: str, what: str) -> None:
        if verb == "die":
            self._die(lambda: os.kill(os.getpid(), getattr(signal, what)))
        elif verb == "exit":
            self._die(lambda: os._exit(int(what)))
        elif verb == "sick" and not self._journal.with_suffix(".cured").exists():
            self._die(lambda: os._exit(1))
        elif verb == "wait":
            _wait_until(self._journal.with_suffix(".cured").exists)
        elif verb == "nap":
            time.sleep(float(what))
        elif verb == "hold":
            _wait_until(lambda: self._deaths.stat().st_size)
        elif verb == "until":
            _wait_until(self._journal.with_suffix(f".{what}").exists)

    def _answered(self, args: Any = (), **_: Any) -> None:
        if "die-answered" in str(args) and not self._deaths.stat().st_size:
            self._die(lambda: os.kill(os.getpid(), signal.SIGKILL))

    def _die(self, how: Callable[[], None]) -> None:
        with self._deaths.open("a") as deaths:
            deaths.write(".")
        how()
        time.sleep(60)  # a signal may reach another thread first

    def _note(self, line: str) -> None:
        with self._journal.open("a") as journal:
            journal.write(line + "\n")


def _wait_until(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.02)
