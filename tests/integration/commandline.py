"""Starting `laya-workers` as a person would, and finding every process that it left behind."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import wait_until
from worker.cli import main

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden" / "checkpoints"
TINY = ",".join(f"{name}={GOLDEN / name}" for name in ("english", "multilingual"))
"""The small random checkpoints, as LAYA_CHECKPOINTS."""

MARK = "LAYA_TEST_MARK"


def laya_workers(
    *arguments: str, stdin: str = "", command: Sequence[str] = (sys.executable, "-m", "worker.cli"), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `laya-workers` (or another command) to its end, with the tiny checkpoints and nothing else set."""
    settings = {"PATH": "/usr/bin:/bin", "COLUMNS": "80", "LAYA_CHECKPOINTS": TINY, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**settings, **environment},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )


def laya_workers_here(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `laya-workers` to its end in this process, which has imported what takes each new one a second.

    Only for commands that end by themselves, and whose app is this process's own: patch it where it is another.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["laya-workers", *arguments])
        for name, value in {"COLUMNS": "80", **environment}.items():
            patch.setenv(name, value)
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


class CommandLine:
    """One `laya-workers` command and all processes that come of it.

    They are recognised by a variable that they inherit; a server overwrites its environment with its title, and is
    recognised by the directory that it works in.
    """

    def __init__(self, tmp_path: Path, *arguments: str, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self._scratch = tmp_path / f"scratch-{self.mark[:8]}"
        self._scratch.mkdir()
        self.output_path = tmp_path / f"output-{self.mark[:8]}.txt"
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("LAYA_", "CELERY_", "FLOWER_"))
        }
        settings = {"COLUMNS": "120", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default", MARK: self.mark}
        settings["TMPDIR"] = str(self._scratch)
        with self.output_path.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "worker.cli", *arguments],
                cwd=ROOT,
                env={**clean, **settings, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it printed so far, to both streams."""
        return self.output_path.read_text(encoding="utf-8", errors="replace")

    def processes(self, part_of_command: str = "") -> list[psutil.Process]:
        """The processes alive now that carry the mark and have `part_of_command` in their command line."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.status() == psutil.STATUS_ZOMBIE or not self._is_ours(process):
                    continue
                if part_of_command in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _is_ours(self, process: psutil.Process) -> bool:
        return process.environ().get(MARK) == self.mark or Path(process.cwd()).is_relative_to(self._scratch)

    def ends(self, seconds: float) -> int:
        """Wait for the command itself; its exit code."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {seconds:g} s; it printed:\n{self.output}") from None

    def leaves_nothing(self, seconds: float = 0.0) -> None:
        """Fail if a process with the mark is alive after `seconds` at most."""
        try:
            wait_until(lambda: not self.processes(), seconds, "the end of every process")
        except AssertionError as error:
            error.add_note(f"left: {self.processes()}\nprinted:\n{self.output}")
            raise

    def clean_up(self) -> None:
        """End the command as its user would, and kill whatever is left, for the next test's sake."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        for process in self.processes():
            process.kill()
        self.process.wait()
