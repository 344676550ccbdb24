"""`laya-workers worker`: Celery's own worker command, with this project's app; every option of Celery's works.

What the worker is made of is in `worker.app`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from worker.settings import WorkerSettings

EXAMPLE = "laya-workers worker --concurrency 16 --hostname gpu0@%h"


def worker(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[CELERY OPTIONS]", help="Passed on to `celery worker`.")
    ] = None,
) -> None:
    """Serve requests until stopped: the same as `celery -A worker worker`, whose --help lists the options.

    SIGTERM or Ctrl-C lets running work finish and puts the rest back. The settings are in docs/settings.md.
    """
    from celery.bin.celery import celery  # noqa: PLC0415 - a command line of its own, which the other commands need not

    WorkerSettings()  # one that cannot be read is one line here, and a traceback where Celery imports the app
    command = ["-A", "worker", "worker", "--loglevel", "INFO", *(arguments or [])]
    celery(args=command, prog_name="celery", auto_envvar_prefix="CELERY")


def register(app: typer.Typer) -> None:
    """Add the command; what it does not know itself goes to Celery."""
    app.command(
        short_help="Serve requests: Celery's worker and its options.",
        epilog=f"Example: {EXAMPLE}",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )(worker)
