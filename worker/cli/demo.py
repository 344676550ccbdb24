"""`laya-workers demo`: how the demo looks. Its course is `worker.demo`'s, its tickets `worker.tickets`'."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from pydantic import AliasChoices
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from laya import small
from producer.app import PredictionApp
from producer.checkpoints import SMALL, parse_checkpoints
from producer.settings import ProducerSettings
from producer.tasks import register as register_tasks
from worker.cli.answers import confidence_style, fitting, percent
from worker.cli.screen import Code, CommandError, out, own_name, plain_table, say
from worker.demo import SETTINGS, VISIBILITY_SECONDS, Demo, DemoFailed, Reply, WorkerSummary
from worker.fleet import LocalFleet
from worker.interrupts import Interrupts, Stopped
from worker.presets import TRIAGE
from worker.settings import WorkerSettings
from worker.tickets import TICKETS

WIDE = 100
"""Cells from which the table spells its answers out."""

WIDE_HEADERS = ("", "checkpoint", "worker", "team", "urgency", "refund", "confidence", "time")
NARROW_HEADERS = ("", "checkpoint", "wkr", "team", "urg", "refund", "conf", "time")
RIGHT = {"confidence", "conf", "time"}

CHECKPOINT_STYLES = {"english": "cyan", "multilingual": "magenta"}
WORKER_STYLES = {"one": "blue", "two": "yellow"}


def demo(
    checkpoints: Annotated[
        str, typer.Option(metavar="LIST", help="Checkpoints to use, written as in LAYA_CHECKPOINTS.")
    ] = SMALL,
) -> None:
    """Start a server and two workers, send tickets in many languages, show the answers, stop everything."""
    forget_settings()
    registered = parse_checkpoints(checkpoints)
    if any(checkpoint.small for checkpoint in registered):
        build_small()
    fleet = LocalFleet({**os.environ, **SETTINGS, "LAYA_CHECKPOINTS": checkpoints}, quiet=True)
    with Interrupts(at_once=fleet.kill) as interrupts, fleet:
        settings = ProducerSettings(
            broker_url=fleet.server.url, checkpoints=registered, visibility_timeout=VISIBILITY_SECONDS
        )
        failed = run(fleet, PredictionApp(settings), interrupts)
    if failed:
        raise CommandError(f"{failed} of {len(TICKETS)} tickets were answered with an error", Code.FAILED)


def forget_settings() -> None:
    """Drop what this machine's environment configures for a deployment, all but the device: it is not for the demo."""
    for name, field in WorkerSettings.model_fields.items():
        alias = field.validation_alias
        names = alias.choices if isinstance(alias, AliasChoices) else [f"LAYA_{name.upper()}"]
        if name != "device":
            for variable in names:
                os.environ.pop(str(variable), None)


def build_small() -> None:
    """Build the small checkpoints here, so that two workers do not do it at once."""
    try:
        with out.status("looking for the small checkpoints, building them at first use"):
            small.checkpoints()
    except KeyboardInterrupt:  # nothing is running yet, and the next build starts anew
        say("SIGINT: stopping")
        raise typer.Exit(Code.OK) from None


def run(fleet: LocalFleet, app: PredictionApp, interrupts: Interrupts) -> int:
    """The demo on a started fleet, up to the summary; how many tickets ended in an error."""
    submit, _ = register_tasks(app)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=out, transient=True)
    bar = progress.add_task("starting two workers", total=None)
    course = Demo(
        fleet,
        app,
        interrupts,
        tell=lambda line: progress.console.print(Text(line, style="yellow")),  # above the bar, not through it
        on_reply=lambda: progress.advance(bar),
    )
    try:
        with progress:
            course.start_workers(app.settings.names)
            progress.reset(bar, total=len(TICKETS), description="asking")
            started = time.monotonic()
            course.run(TICKETS, lambda ticket: submit.delay(ticket.text, TRIAGE))
            took = time.monotonic() - started
            summaries = course.summaries()
    except DemoFailed as error:
        raise CommandError(str(error), Code.UNAVAILABLE) from None
    except Stopped as stopped:
        say(f"{stopped}: stopping; {len(course.replies)} of {len(TICKETS)} tickets were answered")
        return 0
    show(course.replies, summaries, took)
    return sum(reply.error is not None for reply in course.replies)


def show(replies: Sequence[Reply], summaries: Sequence[WorkerSummary], took: float) -> None:
    """The table in the tickets' order, and the summary."""
    order = {ticket.text: number for number, ticket in enumerate(TICKETS)}
    for line in answer_lines(sorted(replies, key=lambda reply: order[reply.ticket.text]), out.width):
        out.print(line, no_wrap=True, crop=False, overflow="ignore")
    out.print()
    out.print(summary_table(summaries))
    out.print()
    for line in closing_lines(replies, took):
        out.print(line)


def answer_lines(replies: Sequence[Reply], width: int) -> list[Text]:
    """A header, then one line a ticket: language, checkpoint, worker, three answers, confidence, time, text.

    The text is last, with nothing after it: terminals disagree about the width of some scripts and turn lines of others
    around, and there it disturbs no column.
    """
    wide = width >= WIDE
    headers = WIDE_HEADERS if wide else NARROW_HEADERS
    gap = Text("  " if wide else " ")
    rows = [[Text(header, style="bold") for header in headers]]
    rows += [[Text(reply.ticket.language, style="dim"), *cells(reply, wide=wide)] for reply in replies]
    for header, column in zip(headers, zip(*rows, strict=True), strict=True):
        widest = max(cell.cell_len for cell in column)
        for cell in column:
            cell.align("right" if header in RIGHT else "left", widest)
    room = width - sum(cell.cell_len + gap.cell_len for cell in rows[0])
    texts = [Text("ticket", style="bold")]
    for reply in replies:
        shown = fitting(reply.error or reply.ticket.text, room)
        texts.append(Text(shown, style="red" if reply.error else ""))
    return [gap.join([*row, text]) for row, text in zip(rows, texts, strict=True)]


def cells(reply: Reply, *, wide: bool) -> list[Text]:
    """The cells of a row, between the language and the text."""
    worker = Text(reply.worker or "-", style=WORKER_STYLES.get(reply.worker or "", ""))
    spent = Text("-" if reply.seconds is None else f"{reply.seconds * 1000:.0f} ms", style="dim")
    if reply.result is None:
        return [Text("-"), worker, Text("-"), Text(), Text(), Text(), spent]
    answers: Mapping[str, Any] = reply.result["answers"]
    model = str(reply.result["routing"]["model"])
    team, urgency, refund = answers["team"], answers["urgency"], answers["refund"]
    sure = team["answer_confidence"]
    return [
        Text(model, style=CHECKPOINT_STYLES.get(model, "")),
        worker,
        Text(team["choice"], style="bold"),
        urgency_cell(urgency, wide=wide),
        Text("yes" if refund["noul"] >= 0.5 else "no", style="bold" if refund["noul"] >= 0.5 else "dim"),
        Text(percent(sure), style=confidence_style(sure)),
        spent,
    ]


def urgency_cell(answer: Mapping[str, Any], *, wide: bool) -> Text:
    """A score as filled and empty dots, with its figure where there is room."""
    highest = len(answer["legend"]) - 1
    filled = min(max(round(answer["score"]), 0), highest)
    dots = Text("●" * filled, style="red" if filled == highest else "yellow")
    dots.append("○" * (highest - filled), style="bright_black")
    if wide:
        dots.append(f" {answer['score']:.1f}", style="dim")
    return dots


def summary_table(summaries: Sequence[WorkerSummary]) -> Table:
    """What each worker did."""
    table = plain_table("worker", "answers", "loads", "resident now")
    for summary in summaries:
        name = Text(summary.name, style=WORKER_STYLES.get(summary.name, ""))
        loads = "-" if summary.loads is None else str(summary.loads)
        table.add_row(name, str(summary.answers), loads, ", ".join(summary.resident) or "-")
    return table


def closing_lines(replies: Sequence[Reply], took: float) -> list[Text]:
    """Throughput, languages, and how often the team was the one that a person would choose."""
    answered = [reply for reply in replies if reply.result is not None]
    right = sum(reply.result["answers"]["team"]["choice"] == reply.ticket.team for reply in answered if reply.result)
    languages = Counter(reply.ticket.language for reply in replies)
    return [
        Text.assemble(
            (f"{len(replies)} tickets", "bold"),
            f" in {len(languages)} languages in {took:.1f} s: ",
            (f"{len(replies) / took:.0f} requests a second", "bold"),
        ),
        Text(f"{right} of {len(answered)} teams are those that a person chose; one in six would be by chance."),
        Text("Confidence is the team's probability, time what the worker spent on the ticket.", style="dim"),
        Text(f"Next: {own_name()} up; docs/quickstart.md goes on from there", style="dim"),
    ]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        short_help="See two workers answer tickets in many languages.",
        epilog="Example: laya-workers demo --checkpoints small",
    )(demo)
