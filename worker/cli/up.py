"""`laya-workers up`: a server, a worker and Flower on this machine, in the foreground, to try things out with.

The processes are `worker.fleet`'s. A deployment uses a supervisor and a server of its own.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.text import Text

from producer.app import PredictionApp
from producer.checkpoints import SMALL, parse_checkpoints
from producer.settings import ProducerSettings
from worker.cli.demo import build_small
from worker.cli.screen import Code, CommandError, err, own_name, say
from worker.fleet import LocalFleet, Member, answering
from worker.interrupts import Interrupts, Stopped
from worker.server import EmbeddedServer, free_port

BROKER_PORT = 6379  # where a backend looks when LAYA_BROKER_URL is unset
FLOWER_PORT = 5555
SHORT_LIFE = 10.0
"""Seconds. A process that ends sooner after its start would only end again."""


def up(
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="How many workers to start.")] = 1,
    flower: Annotated[bool, typer.Option(help="Start the dashboard too.")] = True,
    port: Annotated[int | None, typer.Option(help="The server's port; else 6379, or a free one.")] = None,
) -> None:
    """Run a server, a worker and Flower here until Ctrl-C; nothing is kept afterwards.

    Checkpoints: LAYA_CHECKPOINTS, else the small ones.
    """
    environment = dict(os.environ)
    if not environment.get("LAYA_CHECKPOINTS"):
        environment |= {"LAYA_CHECKPOINTS": SMALL, "LAYA_PRELOAD": "english,multilingual", "LAYA_MAX_LOADED": "2"}
    registered = parse_checkpoints(environment["LAYA_CHECKPOINTS"])
    if any(checkpoint.small for checkpoint in registered):
        build_small()
    fleet = LocalFleet(environment, quiet=False, port=port or preferred_port(BROKER_PORT))
    with Interrupts(fleet.kill, say_stopping) as interrupts, fleet, suppress(Stopped):
        names = [f"worker{number}" for number in range(1, workers + 1)]
        for name in names:
            fleet.start_worker(name)
        dashboard = start_flower(fleet) if flower else "not wanted"
        settings = ProducerSettings(broker_url=fleet.server.url, checkpoints=registered)
        wait_until_ready(fleet, PredictionApp(settings), set(names), interrupts)
        announce(fleet.server, names, dashboard)
        watch(fleet, interrupts)


def say_stopping(number: signal.Signals) -> None:
    """Say that a signal was heard, before what it interrupts has ended."""
    say(f"{number.name}: stopping; a second one stops at once")


def start_flower(fleet: LocalFleet) -> str:
    """Start the dashboard, if it is installed; where it is and how to log in, or what to install."""
    if find_spec("flower") is None:
        return "not installed: pip install 'laya-workers[monitor]'"
    port = preferred_port(FLOWER_PORT)
    given = os.environ.get("FLOWER_BASIC_AUTH")
    login = given or f"laya:{secrets.token_urlsafe(9)}"
    fleet.start_flower(port, login)
    user, _, password = login.partition(":")
    return f"http://127.0.0.1:{port}  user {user}, password {'as in FLOWER_BASIC_AUTH' if given else password}"


def wait_until_ready(fleet: LocalFleet, app: PredictionApp, names: set[str], interrupts: Interrupts) -> None:
    """Wait until every worker answers.

    Raises:
        Stopped: somebody asked for it.
        CommandError: a process ended instead.
    """
    while not names <= answering(app):
        interrupts.wait(0.1)
        for member in fleet.members:
            if member.end is not None:
                raise CommandError(f"{member.name} {member.end} at its start; see above", Code.UNAVAILABLE)


def announce(server: EmbeddedServer, names: list[str], dashboard: str) -> None:
    """Where everything is, and what to try."""
    prefix = "" if server.port == BROKER_PORT else f"LAYA_BROKER_URL={server.url} "
    lines = {
        "server": server.url,
        "workers": ", ".join(names),
        "Flower": dashboard,
        "try": f'{prefix}{own_name()} submit "My parcel never arrived" --preset triage',
        "stop": "Ctrl-C",
    }
    err.print()
    for name, value in lines.items():
        err.print(Text.assemble((f"  {name:<9}", "bold"), value), soft_wrap=True)
    err.print()


def watch(fleet: LocalFleet, interrupts: Interrupts) -> None:
    """Start again what falls; returns never.

    Raises:
        Stopped: somebody asked for it.
        CommandError: a process ended right after its start.
    """
    born: dict[Member, float] = {member: time.monotonic() for member in fleet.members}
    while True:
        interrupts.wait(0.5)
        for member in fleet.members:
            if member.end is None:
                continue
            if time.monotonic() - born[member] < SHORT_LIFE:
                raise CommandError(f"{member.name} {member.end} right after its start; see above", Code.UNAVAILABLE)
            say(f"{member.name} {member.end}: starting it again")
            born[fleet.restart(member)] = time.monotonic()


def preferred_port(port: int) -> int:
    """`port` if nothing has it on the loopback, else a free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return free_port()
    return port


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        short_help="A server, a worker and Flower here, until Ctrl-C.",
        epilog="Example: laya-workers up --workers 2",
    )(up)
