"""`laya-workers up`: a server, a worker and Flower on this machine, in the foreground, to try things out with."""

from __future__ import annotations

import os
import secrets
import socket
import time
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from producer.checkpoints import SMALL, parse_checkpoints
from worker.cli.demo import build_small
from worker.cli.screen import Code, CommandError, err, say
from worker.fleet import LocalFleet, Member
from worker.interrupts import Interrupts, Stopped
from worker.server import free_port

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
    listed = os.environ.get("LAYA_CHECKPOINTS") or SMALL
    if any(checkpoint.small for checkpoint in parse_checkpoints(listed)):
        build_small()
    fleet = LocalFleet(
        {**os.environ, "LAYA_CHECKPOINTS": listed}, quiet=False, port=port or preferred_port(BROKER_PORT)
    )
    with Interrupts(at_once=fleet.kill) as interrupts, fleet:
        try:
            start(fleet, workers, with_flower=flower)
            watch(fleet, interrupts)
        except Stopped as stopped:
            say(f"{stopped}: stopping")


def start(fleet: LocalFleet, workers: int, *, with_flower: bool) -> None:
    """Start the processes, and say where they are."""
    lines = [("broker and results", fleet.server.url)]
    names = [f"worker{number}" for number in range(1, workers + 1)]
    for name in names:
        fleet.start_worker(name)
    lines.append(("workers", ", ".join(names)))
    if with_flower and find_spec("flower") is None:
        lines.append(("Flower", "not installed: pip install 'laya-workers[monitor]'"))
    elif with_flower:
        port = preferred_port(FLOWER_PORT)
        login = os.environ.get("FLOWER_BASIC_AUTH") or f"laya:{secrets.token_urlsafe(9)}"
        fleet.start_flower(port, login)
        user, _, password = login.partition(":")
        shown = "the one in FLOWER_BASIC_AUTH" if "FLOWER_BASIC_AUTH" in os.environ else password
        lines.append(("Flower", f"http://127.0.0.1:{port}  user {user}, password {shown}"))
    prefix = "" if fleet.server.port == BROKER_PORT else f"LAYA_BROKER_URL={fleet.server.url} "
    lines.append(("try", f'{prefix}laya-workers submit "My parcel never arrived" --preset triage'))
    announce(lines)


def announce(lines: list[tuple[str, str]]) -> None:
    """The addresses, before the processes begin to log."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, show_header=False)
    for name, value in lines:
        table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    err.print(table)
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
