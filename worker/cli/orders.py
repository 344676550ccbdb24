"""`laya-workers load` and `unload`: an operator decides what workers hold, and sees what came of it.

What a worker makes of an order is `worker.control`'s matter; here it is given, and watched until it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from producer.app import PredictionApp, app
from worker.cli.screen import Code, CommandError, err, out
from worker.inspection import Holdings
from worker.overview import all_workers, ask_all, named, workers_of

Name = Annotated[str, typer.Argument(metavar="NAME", help="A registered checkpoint.")]
Worker = Annotated[
    str | None, typer.Option("--worker", "-w", metavar="NAME", help="One worker, or all of a host; else every worker.")
]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", min=0.1, help="How long to wait until it is done.")]

ANSWER_SECONDS = 1.0
"""How long workers have to answer one question."""

LOOK_SECONDS = 0.25
"""Pause between two looks at what came of it."""

USAGE_TYPES = {"UnknownCheckpoint"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended on one worker, in a few words; `code` is the exit code that this worker alone would give."""

    words: str
    code: Code = Code.OK


def load(name: Name, worker: Worker = None, timeout: Timeout = 300.0) -> None:
    """Load a checkpoint into memory now, and wait until it is there.

    A worker that is full evicts another one, as for a request. One that is already there is left alone.
    """
    carry_out(app, "load", {"name": name}, worker, timeout, loaded)


def unload(
    name: Name,
    worker: Worker = None,
    force: Annotated[bool, typer.Option("--force", help="Also one that LAYA_PRELOAD keeps in memory.")] = False,
    timeout: Timeout = 60.0,
) -> None:
    """Let go of a checkpoint. The next request for it loads it again, here or elsewhere."""
    carry_out(app, "unload", {"name": name, "force": force}, worker, timeout, unloaded)


Judge = Callable[[str, float, Holdings], Outcome | None]
"""What came of an order, from its checkpoint, the worker's time when it was given, and what it holds; None as yet."""


def loaded(checkpoint: str, asked: float, holdings: Holdings) -> Outcome | None:
    """Whether a load has ended, and how."""
    if checkpoint in holdings["resident"]:
        since = holdings["since"].get(checkpoint, asked)
        return Outcome(f"{checkpoint} loaded in {max(0.0, since - asked):.1f} s")
    failure = holdings["failures"].get(checkpoint)
    if failure is not None and failure["at"] >= asked:
        return Outcome(failure["reason"], Code.FAILED)
    return None


def unloaded(checkpoint: str, asked: float, holdings: Holdings) -> Outcome | None:
    """Whether an unload has ended: it is loaded again at once where a request wants it."""
    if checkpoint not in holdings["resident"]:
        return Outcome(f"{checkpoint} unloaded")
    if holdings["since"].get(checkpoint, 0.0) > asked:
        return Outcome(f"{checkpoint} unloaded, and loaded again: a request asked for it")
    return None


def carry_out(
    on: PredictionApp, command: str, arguments: Mapping[str, Any], worker: str | None, timeout: float, judge: Judge
) -> None:
    """Give the order, wait for its end on every worker, and print a line for each.

    Raises:
        CommandError: it was refused, failed, or not done in time somewhere.
    """
    until = time.monotonic() + timeout
    with err.status(Text(f"{command} {arguments['name']}")):
        before = {each.node: each.holdings for each in all_workers(on, ANSWER_SECONDS)}
        nodes = targets(list(before), worker)
        answers = dict(sorted(ask_all(on, command, arguments, ANSWER_SECONDS * 3, nodes).items()))
        ends = {node: refused_or_idle(answer) for node, answer in answers.items()}
        ends |= {node: Outcome("did not answer", Code.UNREACHABLE) for node in nodes if node not in answers}
        waiting = {node for node, end in ends.items() if end is None}
        for node in sorted(ends.keys() - waiting):
            tell(node, ends[node])
        while waiting and time.monotonic() < until:
            for seen in workers_of(on, ANSWER_SECONDS, sorted(waiting)):
                answer = answers[seen.node]
                end = judge(answer["checkpoint"], answer["asked"], seen.holdings)
                if end is not None:
                    ends[seen.node] = end
                    waiting.discard(seen.node)
                    tell(seen.node, end, evicted(before[seen.node], seen.holdings, answer["checkpoint"]))
            if waiting:
                time.sleep(LOOK_SECONDS)
    for node in sorted(waiting):
        ends[node] = Outcome(f"not done after {timeout:g} s; the worker goes on", Code.UNREACHABLE)
        tell(node, ends[node])
    finish(command, ends)


def targets(nodes: list[str], worker: str | None) -> list[str]:
    """The nodes that an order is for.

    Raises:
        CommandError: no worker answers, or none of that name.
    """
    if not nodes:
        raise CommandError("no worker answers: start one with `laya-workers worker`", Code.UNREACHABLE)
    chosen = nodes if worker is None else named(nodes, worker)
    if not chosen:
        raise CommandError(f"no worker called {worker!r} answers: there is {', '.join(nodes)}", Code.UNREACHABLE)
    return chosen


def refused_or_idle(answer: Mapping[str, Any]) -> Outcome | None:
    """The end of an order that is over with its answer; None where the worker is at it."""
    if "error" in answer:
        return Outcome(str(answer["error"]), Code.USAGE if answer.get("type") in USAGE_TYPES else Code.FAILED)
    if answer["ok"] == "resident":
        return Outcome(f"{answer['checkpoint']} is in memory already")
    if answer["ok"] == "not resident":
        return Outcome(f"{answer['checkpoint']} was not in memory")
    return None


def evicted(before: Holdings, now: Holdings, ordered: str) -> str:
    """What had to go meanwhile, as an addition to a line."""
    gone = [name for name in before["resident"] if name not in now["resident"] and name != ordered]
    return f"; {', '.join(gone)} evicted" if gone else ""


def tell(node: str, end: Outcome | None, addition: str = "") -> None:
    """One worker's line."""
    if end is None:
        return
    style = "green" if end.code is Code.OK else "red"
    line = Text.assemble(("✓ " if end.code is Code.OK else "✗ ", style), (node, "bold"), f"  {end.words}{addition}")
    out.print(line, soft_wrap=True)


def finish(command: str, ends: Mapping[str, Outcome | None]) -> None:
    """End with the code of the worst.

    Raises:
        CommandError: it was not done everywhere.
    """
    bad = [end for end in ends.values() if end is not None and end.code is not Code.OK]
    if bad:
        code = next((code for code in (Code.FAILED, Code.UNREACHABLE) if any(e.code is code for e in bad)), Code.USAGE)
        raise CommandError(f"{command} was not done on {len(bad)} of {len(ends)} workers", code)


def register(to: typer.Typer) -> None:
    """Add the commands."""
    to.command(
        short_help="Load a checkpoint into workers' memory now.",
        epilog="Example: laya-workers load english --worker gpu0",
    )(load)
    to.command(
        short_help="Let go of a checkpoint.",
        epilog="Example: laya-workers unload english --worker gpu0",
    )(unload)
