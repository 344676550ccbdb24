"""`laya-workers dead`: the requests that were set aside, and what becomes of them: shown, sent again, or dropped.

What gets here, and how it is kept, is `worker.dead`'s matter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import pairwise
from os.path import commonprefix
from typing import Annotated, Any

import typer
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from producer.app import app
from worker.cli.screen import Code, CommandError, duration, out, plain_table, say
from worker.dead import DeadLetters, Letter, body_of

EXAMPLE = "laya-workers dead list"

SHORT = 12
"""Characters of an id that are shown, where they are no other's."""

UNLIMITED = 10_000
"""Cells: wider than any table."""

commands = typer.Typer(
    name="dead",
    short_help="Requests that were set aside: list, show, retry, drop.",
    help="Requests that workers died of, and messages that nobody can read. A text is shown only by `show --state`.",
    epilog=f"Example: {EXAMPLE}",
    rich_markup_mode="rich",
    no_args_is_help=True,
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="From `dead list`; its beginning is enough.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]


@commands.command("list", epilog=f"Example: {EXAMPLE}")
def listing(as_json: Json = False) -> None:
    """List the dead letters, the oldest first."""
    letters = DeadLetters(app).letters()
    if as_json:
        typer.echo(json.dumps([asdict(letter) for letter in letters], indent=2))
    elif not letters:
        say("no dead letters")
    else:
        show_all(letters)


@commands.command(epilog="Example: laya-workers dead show 6f1c… --state")
def show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="From `dead list`; its beginning is enough.")],
    state: Annotated[bool, typer.Option("--state", help="The message too, with the texts in it.")] = False,
    as_json: Json = False,
) -> None:
    """Show one dead letter."""
    dead = DeadLetters(app)
    found = dead.get(meant(letter_id, [letter.id for letter in dead.letters()]))
    if found is None:
        raise missing([letter_id])
    letter, text = found
    facts: dict[str, Any] = asdict(letter)
    body = body_of(text) if state else None
    if as_json:
        typer.echo(json.dumps({**facts, "body": body} if state else facts, ensure_ascii=False, indent=2))
        return
    facts["at"] = moment(letter)
    table = plain_table("", "")
    for name, value in facts.items():
        table.add_row(Text(name, style="bold"), Text("-" if value is None else str(value)))
    out.print(table)
    if state:
        out.print(Text(body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, indent=2)))


@commands.command(epilog="Example: laya-workers dead retry --all")
def retry(ids: Ids = None, every: All = False) -> None:
    """Publish dead letters again: the same tasks, counted anew. Whoever asks for a result then gets the new one."""
    dead = DeadLetters(app)
    wanted = chosen(dead, ids, every)
    done = [letter_id for letter_id in wanted if dead.retry(letter_id)]
    say(f"{len(done)} sent again")
    if left := [letter_id for letter_id in wanted if letter_id not in done]:
        there = {letter.id for letter in dead.letters()}
        if gone := [letter_id for letter_id in left if letter_id not in there]:
            raise missing(gone)
        raise CommandError(f"{len(left)} stay: what is no message cannot be sent", Code.FAILED)


@commands.command(epilog="Example: laya-workers dead drop 6f1c…")
def drop(ids: Ids = None, every: All = False) -> None:
    """Forget dead letters. Their tasks keep the result that they have."""
    dead = DeadLetters(app)
    wanted = chosen(dead, ids, every)
    done = [letter_id for letter_id in wanted if dead.drop(letter_id)]
    say(f"{len(done)} dropped")
    if left := [letter_id for letter_id in wanted if letter_id not in done]:
        raise missing(left)


def chosen(dead: DeadLetters, ids: list[str] | None, every: bool) -> list[str]:
    """The ids that a command is about.

    Raises:
        CommandError: ids and --all together, or neither; or the beginning of several ids.
    """
    if bool(ids) == every:
        raise CommandError("name the dead letters by their ids, or say --all", Code.USAGE)
    known = [letter.id for letter in dead.letters()]
    return known if every else [meant(given, known) for given in ids or ()]


def meant(given: str, known: Sequence[str]) -> str:
    """The one id that begins so; what begins none is returned as it is given.

    Raises:
        CommandError: several begin so.
    """
    found = [one for one in known if given and one.startswith(given)]
    if given in found or not found:
        return given
    if len(found) > 1:
        raise CommandError(f"the ids of {len(found)} dead letters begin with {given}: write more of it", Code.USAGE)
    return found[0]


def beginnings(known: Sequence[str]) -> list[str]:
    """Of each id as much as names it and no other, so that a narrow terminal has room for it."""
    ordered = sorted(known)
    needed = dict.fromkeys(known, SHORT)
    for one, following in pairwise(ordered):  # those most alike stand side by side
        shared = len(commonprefix([one, following])) + 1  # noqa: RUF071 - characters are meant, these are no paths
        needed[one], needed[following] = max(needed[one], shared), max(needed[following], shared)
    return [one[: needed[one]] for one in known]


def missing(ids: list[str]) -> CommandError:
    """The error about ids of no dead letter."""
    return CommandError(
        f"no dead letter has the id {', '.join(ids)}: `laya-workers dead list` shows those there are", Code.FAILED
    )


def show_all(letters: list[Letter]) -> None:
    """One row a letter, its reason at the end; on a line of its own where the terminal is too narrow for that."""
    names = beginnings([letter.id for letter in letters])
    everything = letters_table(letters, names)
    if fits(everything):
        out.print(everything)
        return
    table = letters_table(letters, names, without=("reason",))
    if not fits(table):
        table = letters_table(letters, names, without=("reason", "deliveries", "bytes"))
    head, *rows = out.render_lines(table, pad=False)
    out.print(Segments([*head, Segment.line()]), end="")
    for letter, row in zip(letters, rows, strict=True):
        out.print(Segments([*row, Segment.line()]), end="")
        out.print(Padding(Text(letter.reason, style="dim"), (0, 0, 0, 2)))


def fits(table: Table) -> bool:
    """Whether the terminal is as wide as the table would like to be."""
    return Measurement.get(out, out.options.update(max_width=UNLIMITED), table).maximum <= out.width


def letters_table(letters: list[Letter], names: list[str], without: Sequence[str] = ()) -> Table:
    """One line a letter, whatever the width: all but the id may be cut."""
    rows = [
        {
            "id": Text(name),
            "kind": Text(letter.kind, style="red" if letter.kind == "poisoned" else "yellow"),
            "checkpoint": Text(letter.checkpoint or "-"),
            "deliveries": Text(str(letter.deliveries or "-")),
            "when": Text(age(letter)),
            "bytes": Text(f"{letter.size:,}"),
            "reason": Text(letter.reason),
        }
        for letter, name in zip(letters, names, strict=True)
    ]
    shown = [name for name in rows[0] if name not in without]
    table = plain_table(*shown)
    for name, column in zip(shown, table.columns, strict=True):
        column.no_wrap, column.overflow = True, "ellipsis"
        column.justify = "right" if name in {"deliveries", "bytes"} else "left"
    table.columns[0].min_width = max(map(len, names))
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    return table


def moment(letter: Letter) -> str:
    """When it was set aside."""
    return datetime.fromtimestamp(letter.at, UTC).isoformat(timespec="seconds") if letter.at else "unknown"


def age(letter: Letter) -> str:
    """How long ago that was."""
    return f"{duration(time.time() - letter.at)} ago" if letter.at else "-"


def register(to: typer.Typer) -> None:
    """Add the commands."""
    to.add_typer(commands)
