"""`laya-workers cache`: the key of a request, what lies under a key, what the cache holds, and clearing it.

Keys are made in `worker.cached`, entries are read and removed by `hooks.cache_admin`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import redis
import typer
from redis.exceptions import RedisError
from rich.text import Text

from hooks.cache_admin import Administration, Share, Stored
from hooks.cache_settings import CacheSettings, address_of
from hooks.scope import Scope
from producer.app import app
from producer.request import PredictionRequest, read_call
from worker.cached import RequestKey, figures_of_workers, key_of
from worker.cli.answers import answers_table
from worker.cli.given import read_input, read_mapping
from worker.cli.screen import Code, CommandError, duration, out, plain_table, say
from worker.cli.submit import read_questions
from worker.login import advice, refused
from worker.settings import WorkerSettings

EXAMPLE = 'laya-workers cache key "My parcel never arrived" --preset triage'

SECONDS = 5.0
"""How long the cache's server has to answer one command."""

commands = typer.Typer(
    name="cache",
    short_help="The skip cache: key, show, stats, clear.",
    help="The skip cache that all workers share, at LAYA_CACHE_URL.",
    epilog=f"Example: {EXAMPLE}",
    rich_markup_mode="rich",
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
Checkpoint = Annotated[str | None, typer.Option("--checkpoint", "-c", metavar="NAME", help="Only this checkpoint's.")]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", "--namespace", "-n", metavar="NAME", help="Only this tenant's; '' for no tenant's."),
]


@commands.command(epilog=f"Example: {EXAMPLE}")
def key(
    state: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="The text; - reads standard input.", show_default=False)
    ] = None,
    questions: Annotated[
        Path | None, typer.Option("--questions", "-q", metavar="FILE", help="Questions as JSON; - for standard input.")
    ] = None,
    preset: Annotated[str | None, typer.Option("--preset", "-p", metavar="NAME", help="Ready-made questions.")] = None,
    request: Annotated[
        Path | None,
        typer.Option("--request", "-r", metavar="FILE", help="The whole request as JSON; - for standard input."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="NAME", help="Checkpoint to use.")] = None,
    lang: Annotated[str | None, typer.Option("--lang", metavar="CODE", help="Language of the text.")] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "--namespace", "-n", metavar="NAME", help="Whose request it is.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the key of a request on this worker's settings, and whether its answer is there. Loads no checkpoint."""
    settings = WorkerSettings()
    asked = read_request(request) if request is not None else made_request(state, questions, preset)
    asked = PredictionRequest(asked.state, asked.questions, {**asked.options, **given_options(model=model, lang=lang)})
    found = key_of(settings, asked, Scope(namespace=tenant_of(tenant)))
    with administration() as admin:
        there = admin.find(found.key.entry) is not None
    if as_json:
        identity = {**asdict(found.identity), "digest": found.identity.digest}
        facts = {"key": found.key.entry, "stored": there, "checkpoint": found.checkpoint, "reason": found.reason}
        typer.echo(json.dumps({**facts, "identity": identity, "hooks_before": found.hooks_before}, indent=2))
    else:
        show_key(found, there)


@commands.command(epilog="Example: laya-workers cache show laya.cache::english:5f0c…")
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="From `cache key`; its digest is enough.")],
    as_json: Json = False,
) -> None:
    """Show what lies under a key: how large, for how long, and the answers."""
    with administration() as admin:
        stored = admin.find(key)
    if stored is None:
        raise CommandError("nothing lies under this key: `cache key` prints the key of a request", Code.FAILED)
    if as_json:
        typer.echo(json.dumps(asdict(stored), ensure_ascii=False, indent=2))
    else:
        show_stored(stored)
    if stored.result is None:
        raise CommandError("the value is damaged or of another version: whoever reads it drops it", Code.FAILED)


@commands.command(epilog="Example: laya-workers cache stats")
def stats(
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long workers have to answer.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Count entries and bytes by tenant and checkpoint, and what the workers that answer have counted."""
    with administration() as admin:
        shares = admin.shares()
    workers = figures_of_workers(app.control, timeout)
    if as_json:
        typer.echo(json.dumps({"entries": [asdict(share) for share in shares], "workers": workers}, indent=2))
        return
    show_shares(shares)
    out.print()
    if workers:
        show_workers(workers)
    else:
        say(f"no worker with a cache answered within {timeout:g} s", style="dim")


@commands.command(epilog="Example: laya-workers cache clear --checkpoint english --yes")
def clear(
    tenant: Tenant = None,
    checkpoint: Checkpoint = None,
    every: Annotated[bool, typer.Option("--all", help="Everything of this deployment.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove entries, by tenant or checkpoint or all, in small steps that hold up nobody."""
    if every == (tenant is not None or checkpoint is not None):
        raise CommandError("say what to clear: --tenant NAME, --checkpoint NAME, both, or --all", Code.USAGE)
    whose = None if tenant is None else tenant_of(tenant) or ""
    with administration() as admin:
        if not yes:
            there = admin.count(whose, checkpoint)
            if there and sys.stdin is None:
                raise CommandError("nobody can be asked: say --yes", Code.USAGE)
            if there and not typer.confirm(f"Remove {there:,} entries?", err=True):
                raise CommandError("nothing was removed", Code.FAILED)
        removed = admin.clear(whose, checkpoint)
    say(f"{removed:,} removed")


@contextmanager
def administration() -> Iterator[Administration]:
    """The cache of the environment's settings.

    Raises:
        CommandError: its server cannot be used.
    """
    settings = CacheSettings()
    try:
        url = settings.url
    except ValueError as error:
        raise CommandError(str(error), Code.USAGE) from None
    client = redis.Redis.from_url(url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS)
    try:
        yield Administration(client, settings.namespace)
    except RedisError as error:
        if (said := refused(error)) is not None:
            raise CommandError(advice("LAYA_CACHE_URL", url, said), Code.USAGE) from None
        # The error's own text may name what the URL holds.
        raise CommandError(
            f"the cache's server at {address_of(url)} does not answer ({type(error).__name__}): check that it runs, "
            "and that LAYA_CACHE_URL names it",
            Code.UNREACHABLE,
        ) from None
    finally:
        client.close()


def tenant_of(name: str | None) -> str | None:
    """The tenant that a person means: an empty name, and the deployment's own namespace, are none."""
    return None if name == CacheSettings().namespace else name or None


def given_options(**options: str | None) -> dict[str, str]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def made_request(text: str | None, questions: Path | None, preset: str | None) -> PredictionRequest:
    """The request of a text and questions, as `submit` has them.

    Raises:
        CommandError: one of them is missing or cannot be read.
    """
    if text is None:
        raise CommandError("name the text and its questions, or the whole request: --request FILE", Code.USAGE)
    asked = read_questions(questions, preset)
    return PredictionRequest(read_input() if text == "-" else text, asked)


def read_request(file: Path) -> PredictionRequest:
    """A request in a JSON file: `state`, `questions`, and options.

    Raises:
        CommandError: it cannot be read, or is no mapping.
        InvalidRequest: it is no request.
    """
    return read_call((), read_mapping(file, "the request", "state, questions and options"))


def show_key(found: RequestKey, there: bool) -> None:
    """The key alone on standard output, for a pipe; what it was made of beside it."""
    typer.echo(found.key.entry)
    identity = found.identity
    say(f"{found.checkpoint}: {found.reason}", style="dim")
    say(f"{identity.content}, {identity.dtype}, {identity.max_len} and {identity.head_max_len} tokens", style="dim")
    say("its answer is stored" if there else "its answer is not stored", style="green" if there else "yellow")
    if found.hooks_before:
        say(f"as asked: {', '.join(found.hooks_before)} may rewrite it before the cache sees it", style="yellow")


def show_stored(stored: Stored) -> None:
    """The facts of an entry, and its answers."""
    table = plain_table("", "")
    left = "never" if stored.left is None else f"in {duration(stored.left)}"
    packed = f" (compressed from {stored.text_size:,})" if stored.compressed else ""
    for name, value in (
        ("key", stored.key),
        ("tenant", stored.name.tenant or "-"),
        ("checkpoint", stored.name.checkpoint),
        ("age", age(stored)),
        ("expires", left),
        ("size", f"{stored.size:,} bytes{packed}"),
    ):
        table.add_row(Text(name, style="bold"), Text(value))
    out.print(table)
    if stored.result is not None:
        out.print()
        out.print(answers_table(stored.result))


def age(stored: Stored) -> str:
    """About how old an entry is: what is gone of its time, a tenth of which is random."""
    if stored.left is None:
        return "unknown"
    return f"at most {duration(max(0.0, CacheSettings().cache_ttl - stored.left))}"


def show_shares(shares: list[Share]) -> None:
    """One row a tenant and checkpoint, and the sum."""
    table = plain_table("tenant", "checkpoint", "entries", "bytes")
    for share in shares:
        table.add_row(Text(share.tenant or "-"), Text(share.checkpoint), f"{share.entries:,}", f"{share.size:,}")
    entries, size = sum(share.entries for share in shares), sum(share.size for share in shares)
    table.add_row(Text("all", style="bold"), "", Text(f"{entries:,}", style="bold"), Text(f"{size:,}", style="bold"))
    for column in table.columns[2:]:
        column.justify = "right"
    out.print(table)


def show_workers(workers: dict[str, dict[str, Any]]) -> None:
    """One row a worker."""
    shown = ("hits", "misses", "bypassed", "waits", "errors")
    table = plain_table("worker", *shown, "hit rate", "server")
    for node, facts in workers.items():
        asked = facts["hits"] + facts["misses"]
        rate = f"{facts['hits'] / asked:.0%}" if asked else "-"
        style = "green" if facts["state"] == "closed" else "red"
        state = Text("in use" if facts["state"] == "closed" else "left alone", style=style)
        table.add_row(Text(node), *(f"{facts[name]:,}" for name in shown), rate, state)
    for column in table.columns[1:-1]:
        column.justify = "right"
    out.print(table)


def register(to: typer.Typer) -> None:
    """Add the commands."""
    to.add_typer(commands)
