"""`laya-workers status`: which workers answer, what each holds in memory, and how many requests wait for what.

Once, again and again on one screen, or as JSON. What it looks like is `worker.cli.overview`'s.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from producer.app import app
from worker.cli.overview import Trend, view
from worker.cli.screen import Code, CommandError, err, out
from worker.overview import Overview, overview

PAUSE_SECONDS = 1.0
"""Between two looks of `--watch`, besides the time that the workers take to answer."""


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON; with --watch one line a look.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.05, help="How long workers have to answer.")] = 1.0,
) -> None:
    """Show the workers that answer, what they hold in memory, and the queues. Fails if no worker answers.

    What each column means is in docs/operating.md.
    """
    if watch:
        follow(lambda: overview(app, timeout), as_json=as_json)
        return
    with err.status("asking the workers"):
        seen = overview(app, timeout)
    if as_json:
        typer.echo(json.dumps(as_facts(seen), indent=2))
    else:
        out.print(view(seen, out.width))
    if not seen.workers:
        raise CommandError(
            f"no worker answered within {timeout:g} s: start one with `laya-workers worker`", Code.UNREACHABLE
        )


def follow(look: Callable[[], Overview], *, as_json: bool) -> None:
    """Look until Ctrl-C. A server that does not answer is said, and asked again."""
    try:
        if as_json:
            while True:
                typer.echo(json.dumps(as_facts(look())))
                time.sleep(PAUSE_SECONDS)
        on_screen(look)
    except KeyboardInterrupt:
        return


def on_screen(look: Callable[[], Overview]) -> None:
    """One screen that is drawn anew; where the output is no terminal, one after the other."""
    trend = Trend()
    shown: RenderableType = Text("asking the workers", style="dim")
    with Live(shown, console=out, auto_refresh=False) as live:
        while True:
            try:
                seen = look()
            except (OperationalError, RedisError, OSError) as error:
                note = Text(f"the server does not answer: {error}"[: out.width], style="red")
            else:
                growth = trend.add(seen)
                shown = view(seen, out.width, growth)
                note = Text(time.strftime("%H:%M:%S") + " · Ctrl-C ends", style="dim")
                if not out.is_terminal:
                    out.print(shown)
            live.update(Group(shown, Text(), note), refresh=True)
            time.sleep(PAUSE_SECONDS)


def as_facts(seen: Overview) -> dict[str, Any]:
    """The same for scripts: documented in docs/operating.md, where fields are added but never change."""
    return {
        "at": round(seen.at, 3),
        "workers": [
            {
                "node": worker.node,
                **worker.holdings,
                "loads": sum(worker.holdings["loads"].values()),
                "rate": round(worker.rate, 3),
            }
            for worker in seen.workers
        ],
        "silent": [
            {"node": silent.node, "holds": list(silent.holds), "loading": list(silent.loading)}
            for silent in seen.silent
        ],
        "queues": [
            {
                "checkpoint": queue.checkpoint,
                "waiting": queue.waiting,
                "oldest": None if queue.oldest is None else round(queue.oldest, 3),
                "rate": round(queue.rate, 3),
                "held_by": list(queue.held_by),
                "loading_on": list(queue.loading_on),
                "served_by": list(queue.served_by),
            }
            for queue in seen.queues
        ],
        "totals": {
            "workers": len(seen.workers),
            "waiting": seen.waiting,
            "in_flight": seen.in_flight,
            "rate": round(seen.rate, 3),
        },
    }


def register(to: typer.Typer) -> None:
    """Add the command."""
    to.command(
        short_help="Workers, what each holds in memory, what waits.",
        epilog="Example: LAYA_BROKER_URL=redis://10.0.0.5:6379/0 laya-workers status --watch",
    )(status)
