"""What all commands print with, and how they fail: two consoles, the exit codes, and errors as one clear line.

Standard output carries results, standard error everything said about them, so that a pipe gets the results alone.
"""

from __future__ import annotations

import shutil
import sys
from enum import IntEnum
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class Code(IntEnum):
    """How a command ends, for scripts."""

    OK = 0
    FAILED = 1  # the request was answered with an error, or a check found something wrong
    USAGE = 2  # an option, a file or a setting cannot be used as it is
    UNREACHABLE = 3  # the server or a worker did not answer in time
    UNAVAILABLE = 4  # something that the command needs is not installed or did not start


class CommandError(Exception):
    """A command cannot go on; the message is one line for a person, and says what to do."""

    def __init__(self, message: str, code: Code) -> None:
        """Hold the line and the exit code."""
        super().__init__(message)
        self.code = code


def own_name() -> str:
    """How this command line is called from a shell: by its name, or by its path where the shell finds no such name."""
    called = Path(sys.argv[0])
    found = shutil.which("laya-workers")
    if called.name != "laya-workers" or (found is not None and Path(found).samefile(called)):
        return "laya-workers"
    return sys.argv[0]


def plain_table(*headers: str) -> Table:
    """A table without lines, its columns two cells apart."""
    return Table(*headers, box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")


def duration(seconds: float) -> str:
    """`0.4 s`, `45 s`, `3 min`, `2 h`, `5 d`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"


def say(line: str, *, style: str = "") -> None:
    """One line to standard error, beside the results."""
    err.print(Text(line, style=style), soft_wrap=True)


def report(message: str) -> None:
    """An error, as one line to standard error."""
    line = Text("error: ", style="bold red")
    line.append(" ".join(message.split()), style="")
    err.print(line, soft_wrap=True)
