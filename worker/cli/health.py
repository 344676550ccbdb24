"""`laya-workers health`: a probe for compose and Kubernetes. Exit code 0 if every worker on this machine is well.

It imports little and needs no answer from the worker: it ends within two seconds, also beside one that is frozen.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.health import Pulse, problems, read_pulses, read_sight, run_directory, starved, write_sight

if TYPE_CHECKING:
    import typer

BROKER_S = 0.5
"""Seconds for the broker to answer: a probe is not there to find out how the broker is."""


def main(arguments: Sequence[str]) -> int:
    """Probe, say what was found, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="laya-workers health",
        description="A probe: is every worker on this machine well? Exit code 0 if so, else 1, and what is wrong.",
        epilog="Example: laya-workers health --node worker1",
    )
    parser.add_argument("--node", help="only the worker of this name (before the @)")
    parser.add_argument("--json", action="store_true", help="print what is known of each worker as JSON")
    options = parser.parse_args(arguments)
    return probe(options.node, as_json=options.json)


def probe(node: str | None, *, as_json: bool) -> int:
    """See `main`."""
    directory = run_directory(os.environ.get("LAYA_RUN_DIR"))
    pulses = [pulse for pulse in read_pulses(directory) if node in {None, pulse.node, pulse.node.partition("@")[0]}]
    now = time.time()
    sight = read_sight(directory)
    tags = _oldest(sorted({queue for pulse in pulses for queue in pulse.queues}))
    if tags is not None:
        sight = sight.updated(tags, now)
        write_sight(directory, sight)
    found = {pulse: [*problems(pulse, now), *starved(pulse, sight, now)] for pulse in pulses}
    if as_json:
        print(json.dumps([{**asdict(pulse), "problems": wrong} for pulse, wrong in found.items()], indent=2))
    else:
        _say(found, directory)
    return 0 if found and not any(found.values()) else 1


def _say(found: Mapping[Pulse, Sequence[str]], directory: Path) -> None:
    if not found:
        print(f"no worker runs here (none has a pulse in {directory})", file=sys.stderr)
    for pulse, wrong in found.items():
        state = "; ".join(wrong) or ("well" if pulse.ready else "well, and has no broker yet")
        print(f"{pulse.node} (pid {pulse.pid}): {state}", file=sys.stderr if wrong else sys.stdout)


def _oldest(queues: Sequence[str]) -> dict[str, str] | None:
    """The tag of the message that has waited longest in each queue; None if the broker does not say."""
    url = os.environ.get("LAYA_BROKER_URL") or "redis://127.0.0.1:6379/0"
    if not queues or not url.startswith(("redis://", "rediss://")):
        return None
    import redis  # noqa: PLC0415 - where nothing is asked it is not needed

    patience = {"socket_timeout": BROKER_S, "socket_connect_timeout": BROKER_S}
    try:
        with redis.Redis.from_url(url, retry=None, **patience) as client, client.pipeline(transaction=False) as pipe:
            for queue in queues:
                pipe.lindex(queue, -1)
            answers = pipe.execute(raise_on_error=False)
    except (redis.RedisError, OSError, ValueError):
        return None
    tags = {queue: _tag(raw) for queue, raw in zip(queues, answers, strict=True)}
    return {queue: tag for queue, tag in tags.items() if tag is not None}


def _tag(raw: Any) -> str | None:
    try:
        return str(json.loads(raw)["properties"]["delivery_tag"])
    except (ValueError, TypeError, KeyError):
        return None


def register(app: typer.Typer) -> None:
    """Add the command to the others, for their `--help`; what is typed comes to `main` without them."""
    import typer as cli  # noqa: PLC0415 - a probe starts without it

    @app.command(
        short_help="A probe: is every worker on this machine well?",
        epilog="Example: laya-workers health --node worker1",
    )
    def health(  # annotations are read by the module's names, so the options stand in the defaults
        node: str | None = cli.Option(None, help="Only the worker of this name (before the @)."),
        as_json: bool = cli.Option(False, "--json", help="Print what is known of each worker as JSON."),
    ) -> None:
        """Exit with 0 if every worker on this machine lives, turns and takes; else with 1, and say why."""
        raise cli.Exit(probe(node, as_json=as_json))
