"""A Python module run as a child process that ends when its parent does, however the parent dies.

The parent holds the writing end of a pipe that it never writes to; the child reads it in a thread, and the end of
the file is the parent's death, a kill -9 included. What the child runs, and when it is stopped otherwise, is its
starter's matter.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO

ORPHAN_GRACE = 3.0
"""Seconds that an orphan gets between SIGTERM and its end: there is nobody left to finish the work for."""


def start(
    module: str, arguments: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Run `python -m module arguments…` on a leash, in a session of its own (Ctrl-C does not reach it by itself).

    Args:
        module: what `python -m` would run.
        arguments: its command line.
        environment: the child's complete environment.
        output: an open file that gets its standard output and errors.

    Returns:
        The process. Its `stdin` is the leash: closing it, or dying, ends the child.
    """
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "worker.leash", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )


def ask(process: subprocess.Popen[bytes]) -> None:
    """Ask the child to finish (SIGTERM). Once: a worker that is asked twice leaves its work to others."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)


def wait(process: subprocess.Popen[bytes], *, grace: float) -> int:
    """Wait `grace` seconds at most for a child that was asked, then kill it. Returns its exit status."""
    try:
        status = process.wait(timeout=grace)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if process.stdin is not None:
        process.stdin.close()
    return status


def _end_with_parent(leash: int) -> None:
    while os.read(leash, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """The child's side: watch the leash, then become the module."""
    leash = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=_end_with_parent, args=(leash,), name="leash", daemon=True).start()
    module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
