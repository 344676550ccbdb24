"""The commands of `laya-workers`, put together, and what an error looks like to the person who typed one.

Each command has a module of its own here; what the commands do beyond talking to a person is in `worker`.
"""

from __future__ import annotations

import logging
import os
import sys

import typer
from kombu.exceptions import OperationalError
from pydantic import ValidationError
from redis.exceptions import RedisError

from producer.errors import BrokerUnavailable, DeadlineExceeded, LayaError, UnknownCheckpoint
from producer.settings import ProducerSettings
from worker.cli import cache, checkpoints, dead, demo, doctor, health, orders, serve, status, submit, up
from worker.cli.screen import Code, CommandError, report
from worker.login import advice, refused
from worker.server import ServerError
from worker.settings import problems

app = typer.Typer(
    name="laya-workers",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Typed decisions from a queue: ask, serve and look after Laya checkpoints.",
    epilog="Example: laya-workers demo.  Exit codes: docs/quickstart.md",
)
for module in (demo, up, serve, submit, checkpoints, cache, status, health, dead, orders, doctor):
    module.register(app)


def run() -> None:
    """Run the command line; an error that a person can act on ends it with one line and its exit code."""
    # An error is told once, below; what the library logs about it would say it twice. A worker sets its own logging.
    logging.getLogger("producer").addHandler(logging.NullHandler())
    try:
        app()
    except CommandError as error:
        report(str(error))
        sys.exit(error.code)
    except (BrokerUnavailable, DeadlineExceeded) as error:
        _end_if_refused(error)
        report(error.message)
        sys.exit(Code.UNREACHABLE)
    except (OperationalError, RedisError) as error:
        _end_if_refused(error)
        reason = str(error).rstrip(".")
        report(f"the server does not answer: {reason}; check that it runs, and that LAYA_BROKER_URL names it")
        sys.exit(Code.UNREACHABLE)
    except UnknownCheckpoint as error:
        report(error.message)
        sys.exit(Code.USAGE)
    except LayaError as error:
        report(f"{type(error).__name__}: {error.message}")
        sys.exit(Code.FAILED)
    except ValidationError as error:
        report(problems(error))
        sys.exit(Code.USAGE)
    except ServerError as error:
        report(str(error))
        sys.exit(Code.UNAVAILABLE)
    except OSError as error:
        _drop_what_cannot_be_written()
        report(f"{error.filename or 'a file or the output'}: {error.strerror or type(error).__name__}")
        sys.exit(Code.FAILED)


def _drop_what_cannot_be_written() -> None:
    """Let nothing be left that Python would try to write at its end, and complain about."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_if_refused(error: Exception) -> None:
    """End here if the server has answered, and lets nobody in with what the settings say."""
    if (said := refused(error)) is not None:
        report(advice("LAYA_BROKER_URL", ProducerSettings().broker_url, said))
        sys.exit(Code.USAGE)
