"""`laya-workers checkpoints`: which are registered, where each comes from, and whether it is here already.

It looks on this machine and nowhere else; loading one is a worker's work, building the small ones `laya.small`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import typer
from rich.text import Text

from laya import small
from laya.catalog import DEFAULT_MODELS
from producer.checkpoints import CheckpointSource
from worker.cli.screen import out, plain_table
from worker.settings import WorkerSettings

EXAMPLE = "LAYA_CHECKPOINTS=small laya-workers checkpoints build"

commands = typer.Typer(
    name="checkpoints",
    short_help="List the checkpoints, build the small ones.",
    help="List the registered checkpoints, or build the small ones.",
    epilog=f"Example: {EXAMPLE}",
    rich_markup_mode="rich",
    invoke_without_command=True,
)

WEIGHTS = "model.safetensors"


@commands.callback()
def listing(context: typer.Context) -> None:
    """List the registered checkpoints, or build the small ones."""
    if context.invoked_subcommand is None:
        show(WorkerSettings().checkpoints)


@commands.command(epilog=f"Example: {EXAMPLE}")
def build() -> None:
    """Build the two small checkpoints into the user's cache directory, if they are not there yet."""
    with out.status("building the small checkpoints"):
        paths = small.checkpoints()
    for name, path in paths.items():
        out.print(Text.assemble((f"{name:<14}", "bold"), str(path)))


def show(checkpoints: tuple[CheckpointSource, ...]) -> None:
    """A table: name, source, what is here of it."""
    table = plain_table("checkpoint", "source", "here")
    for checkpoint in checkpoints:
        place, here, found = state_of(checkpoint)
        style = "green" if found else "yellow"
        table.add_row(Text(checkpoint.name, style="bold"), Text(place), Text(here, style=style))
    out.print(table)


class Presence(NamedTuple):
    """Where a checkpoint comes from, what is here of it in a few words, and whether that is all of it."""

    place: str
    here: str
    found: bool


def state_of(checkpoint: CheckpointSource) -> Presence:
    """Look for a checkpoint on this machine, and nowhere else."""
    if checkpoint.small:
        built = checkpoint.name in small.built()
        return Presence("small", "built" if built else "not built yet", built)
    if checkpoint.is_path:
        path = Path(str(checkpoint.source)).expanduser()
        found = (path / WEIGHTS).is_file()
        return Presence(str(path), "there" if found else f"no {WEIGHTS} there", found)
    repository, subfolder = checkpoint.source, checkpoint.subfolder
    if repository is None:
        repository, subfolder = DEFAULT_MODELS[checkpoint.name]
    return hub_state(repository, subfolder, checkpoint.revision)


def hub_state(repository: str, subfolder: str | None, revision: str | None) -> Presence:
    """The same for a repository on the Hub: looks into the local cache."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - slow to import

    file = f"{subfolder}/{WEIGHTS}" if subfolder else WEIGHTS
    found = isinstance(try_to_load_from_cache(repository, file, revision=revision), str)
    place = repository + (f":{subfolder}" if subfolder else "") + (f"@{revision}" if revision else "")
    return Presence(place, "downloaded" if found else "not downloaded yet", found)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(commands)
