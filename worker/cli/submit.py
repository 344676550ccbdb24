"""`laya-workers submit`: ask one state's questions through the queue, as a backend would, and show the answers.

What a request may be is decided in `producer.request_checks`, how answers look in `worker.cli.answers`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from rich.padding import Padding
from rich.text import Text

from producer.app import app
from producer.client import apredict
from producer.request import PredictionOptions, PredictionRequest, route
from producer.tasks import is_eager
from worker.cli.answers import answers_table
from worker.cli.given import read_input, read_mapping
from worker.cli.screen import Code, CommandError, out, say
from worker.overview import all_workers
from worker.presets import PRESETS

EXAMPLE = 'laya-workers submit "My parcel never arrived" --preset triage'

PATIENCE_SECONDS = 1.5
"""Seconds without an answer after which somebody may wonder whether any worker is there."""

ANSWER_SECONDS = 1.0
"""How long workers have to say so."""


def submit(
    state: Annotated[str, typer.Argument(metavar="TEXT", help="The text; - reads standard input.")],
    questions: Annotated[
        Path | None, typer.Option("--questions", "-q", metavar="FILE", help="Questions as JSON; - for standard input.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", "-p", metavar="NAME", help=f"Ready-made questions: {', '.join(PRESETS)}.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="NAME", help="Checkpoint to use.")] = None,
    min_confidence: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Mark answers below it, 0 to 1.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", min=0.0, help="How long to wait for the answer.")] = 30.0,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compute the answer, and let no cache keep it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Ask questions about a text, and print the answers."""
    asked = read_questions(questions, preset)
    text = read_input() if state == "-" else state
    if not text.strip():
        raise CommandError("the text is empty: there is nothing to ask about", Code.USAGE)
    cache = False if no_cache else None
    options = PredictionOptions(model=model, min_confidence=min_confidence, cache=cache)
    result = asyncio.run(ask(text, asked, timeout, options))
    if as_json:
        typer.echo(json.dumps(result, ensure_ascii=False, indent=2))
    else:
        show(text, result)


async def ask(text: str, questions: Mapping[str, Any], timeout: float, options: PredictionOptions) -> dict[str, Any]:
    """The answer. Where none comes at once, find out whether anybody is there to give one.

    Raises:
        CommandError: workers answer, but none of them serves the checkpoint.
        LayaError: as `producer.apredict`.
    """
    asking = asyncio.create_task(apredict(text, questions, timeout, **options))
    done, _ = await asyncio.wait({asking}, timeout=PATIENCE_SECONDS)
    if not done and not is_eager(app):
        given = {name: value for name, value in options.items() if value is not None}
        settings = app.settings
        request = PredictionRequest(text, questions, given)
        checkpoint = route(request, settings.names, settings.default_checkpoint)["model"]
        with suppress(OperationalError, RedisError, OSError):  # the request itself says what is the matter
            workers = await asyncio.to_thread(all_workers, app, ANSWER_SECONDS)
            served = {name for worker in workers for name in worker.holdings["serves"]}
            if not workers and not asking.done():
                say(f"no worker answers yet; waiting {timeout:g} s for one that serves {checkpoint}")
            elif checkpoint not in served and not asking.done():
                asking.cancel()
                names = ", ".join(sorted(served))
                raise CommandError(f"no worker serves {checkpoint}: those that answer serve {names}", Code.UNREACHABLE)
    return await asking


def read_questions(file: Path | None, preset: str | None) -> Mapping[str, Any]:
    """The questions that the options name: a preset's, or a JSON file's.

    Raises:
        CommandError: both or neither are named, or what is named cannot be read.
    """
    if preset is None and file is not None:
        return read_mapping(file, "the questions", "id to definition")
    if preset is None or file is not None:
        raise CommandError("name the questions: --questions FILE or --preset triage", Code.USAGE)
    if preset not in PRESETS:
        raise CommandError(f"no preset is called {preset!r}: there is {', '.join(PRESETS)}", Code.USAGE)
    return PRESETS[preset]


def show(text: str, result: Mapping[str, Any]) -> None:
    """The text, the answers, and how they came about."""
    routing = result.get("routing") or {}
    tokens = result["usage"]["input_tokens"]
    out.print()
    # Without a frame: terminals disagree about the width of some scripts.
    out.print(Padding(Text(text, style="italic"), (0, 4, 0, 2)))
    out.print()
    out.print(answers_table(result))
    foot = Text(str(routing.get("model", "")), style="bold")
    foot.append(f"  {routing.get('reason', '')}  {tokens} tokens", style="not bold dim")
    out.print(foot)


def register(to: typer.Typer) -> None:
    """Add the command."""
    to.command(short_help="Ask questions about a text.", epilog=f"Example: {EXAMPLE}")(submit)
