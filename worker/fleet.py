"""A server and workers on this machine, for as long as somebody watches them: the demo and `laya-workers up`.

Holds the processes and notices when one falls; what is asked of them, and what is said about them, is the caller's.
Everything started here ends with this process, however it ends. A deployment uses a supervisor and its own server.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from celery import Celery

from worker import leash
from worker.server import EmbeddedServer

STOP_GRACE = 15.0
"""Seconds that a worker gets to finish its running work before it is killed."""

LOG_LINES = 15
"""Lines of a fallen process's log that are worth showing."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One process of the fleet; `log` is None when it writes to the terminal."""

    name: str
    command: tuple[str, ...]
    settings: Mapping[str, str]
    process: subprocess.Popen[bytes]
    log: Path | None

    @property
    def end(self) -> str | None:
        """How the process ended, in words; None while it runs."""
        status = self.process.poll()
        if status is None:
            return None
        return f"was killed ({signal.Signals(-status).name})" if status < 0 else f"ended with exit code {status}"

    @property
    def log_end(self) -> str:
        """The last lines that it wrote, if they went to a file."""
        if self.log is None:
            return ""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:])


def answering(app: Celery, seconds: float = 0.5) -> set[str]:
    """The names (before the @) of the workers on the app's broker that take requests now."""
    answers = app.control.ping(timeout=seconds) or []
    return {node.partition("@")[0] for answer in answers for node in answer}


class LocalFleet:
    """An embedded server with workers and Flower beside it; a context manager that leaves nothing running."""

    def __init__(self, environment: Mapping[str, str], *, quiet: bool, port: int | None = None) -> None:
        """Describe the fleet; entering the context starts the server.

        Args:
            environment: the variables of every process; the server's address is added.
            quiet: keep the processes' output in files instead of the terminal.
            port: the server's loopback port; a free one if None.
        """
        self.server = EmbeddedServer(port=port)
        self._environment = dict(environment)
        self._quiet = quiet
        self._members: dict[str, Member] = {}
        self._logs = tempfile.TemporaryDirectory(prefix="laya-logs-", ignore_cleanup_errors=True)

    def __enter__(self) -> Self:
        """Start the server."""
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of every process of the fleet, the server's address among them."""
        return {**self._environment, "LAYA_BROKER_URL": self.server.url, "LAYA_RESULT_URL": self.server.url}

    @property
    def members(self) -> tuple[Member, ...]:
        """The processes started so far, the latest of each name."""
        return tuple(self._members.values())

    def start_worker(self, name: str, *, options: Sequence[str] = (), **settings: str) -> Member:
        """Start a Celery worker as `name@host`; `settings` are further variables for it alone."""
        command = ("-A", "worker", "worker", "--hostname", f"{name}@%h", "--loglevel", "INFO", *options)
        return self._start(name, command, settings)

    def start_flower(self, port: int, login: str) -> Member:
        """Start Flower on a loopback port; `login` is `user:password`."""
        command = ("-A", "worker", "flower", "--address=127.0.0.1", f"--port={port}", "--logging=error")
        return self._start("flower", command, {"FLOWER_BASIC_AUTH": login})

    def restart(self, member: Member) -> Member:
        """Start a member that has ended once more, as it was started."""
        return self._start(member.name, member.command, member.settings)

    def stop(self) -> None:
        """Ask all to finish at once, wait for each, then stop the server."""
        for member in self.members:
            leash.ask(member.process)
        for member in self.members:
            leash.wait(member.process, grace=STOP_GRACE)
        self.server.stop()
        self._logs.cleanup()

    def kill(self) -> None:
        """End everything now, for somebody who does not want to wait."""
        for member in self.members:
            member.process.kill()
        self.server.kill()

    def _start(self, name: str, command: tuple[str, ...], settings: Mapping[str, str]) -> Member:
        environment = {**self.environment, **settings}
        if not self._quiet:
            process = leash.start("celery", command, environment=environment, output=sys.stderr.buffer)
            member = Member(name, command, settings, process, None)
        else:
            path = Path(self._logs.name) / f"{name}.log"
            with path.open("ab") as log:
                process = leash.start("celery", command, environment=environment, output=log)
            member = Member(name, command, settings, process, path)
        self._members[name] = member
        return member
