"""`laya-workers doctor`: is this machine, with these settings, able to ask or to serve?

Each check is one line, a fault says what to do. It changes nothing and loads no checkpoint.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version

import typer
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url
from redis import Redis
from redis.exceptions import RedisError
from rich.text import Text

from producer.app import PredictionApp
from worker.cli.checkpoints import state_of
from worker.cli.screen import Code, CommandError, out
from worker.health import clock_note
from worker.settings import WorkerSettings

GIBIBYTE = 1024**3
SMALL_MEMORY = 2 * GIBIBYTE
"""Bytes below which a published checkpoint hardly fits."""

PACKAGES = ("celery", "kombu", "redis", "torch", "transformers", "flower")


class Verdict(StrEnum):
    """How a check came out."""

    GOOD = "good"
    HINT = "hint"
    FAULT = "fault"


STYLES = {Verdict.GOOD: ("✓", "green"), Verdict.HINT: ("!", "yellow"), Verdict.FAULT: ("✗", "red")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    verdict: Verdict
    subject: str
    detail: str


def doctor() -> None:
    """Check settings, server, packages, device and checkpoints, and say what to do about each fault."""
    settings = WorkerSettings()
    checks: tuple[Callable[[WorkerSettings], Iterator[Finding]], ...] = (
        packages,
        server,
        results,
        cache,
        device,
        memory,
        checkpoints,
    )
    findings = [finding for check in checks for finding in check(settings)]
    widest = max(len(finding.subject) for finding in findings)
    for finding in findings:
        sign, style = STYLES[finding.verdict]
        subject = f"{finding.subject:<{widest}}  "
        out.print(Text.assemble((f"{sign} ", style), (subject, "bold"), finding.detail), soft_wrap=True)
    faults = sum(finding.verdict is Verdict.FAULT for finding in findings)
    if faults:
        raise CommandError(f"{faults} of {len(findings)} checks found a fault", Code.FAILED)


def packages(_: WorkerSettings) -> Iterator[Finding]:
    """Which versions are installed."""
    yield Finding(Verdict.GOOD, "python", sys.version.split()[0])
    for name in PACKAGES:
        try:
            yield Finding(Verdict.GOOD, name, version(name))
        except PackageNotFoundError:
            yield Finding(Verdict.HINT, name, "not installed; a backend needs none of torch, transformers, flower")


def server(settings: WorkerSettings) -> Iterator[Finding]:
    """Whether the broker answers, and keeps what it is given."""
    where = ";".join(map(maybe_sanitize_url, settings.broker_url.split(";")))  # without the passwords
    try:
        # As workers and backends connect, so that sentinels and TLS count too.
        with PredictionApp(settings).connection_for_read() as connection:
            facts = connection.default_channel.client.info()
    except (RedisError, OperationalError, OSError) as error:
        reason = str(error).partition(" : <")[0].rstrip(".")  # redis-py adds the repr of each sentinel's client
        yield Finding(Verdict.FAULT, "broker", f"{where}: {reason}; start it, or set LAYA_BROKER_URL")
        return
    yield Finding(Verdict.GOOD, "broker", f"{where}, version {facts.get('valkey_version') or facts['redis_version']}")
    if note := clock_note(time.time() - facts["server_time_usec"] / 1_000_000):
        yield Finding(Verdict.HINT, "clock", note)
    policy = facts.get("maxmemory_policy", "unknown")
    if policy == "noeviction":
        yield Finding(Verdict.GOOD, "eviction", policy)
    else:
        detail = f"{policy}: an evicted key is a lost request; set maxmemory-policy noeviction"
        yield Finding(Verdict.FAULT, "eviction", detail)
    if not facts.get("aof_enabled"):
        yield Finding(Verdict.HINT, "persistence", "off: a restart of the server loses what waits; set appendonly yes")


def results(settings: WorkerSettings) -> Iterator[Finding]:
    """Whether the server of the results answers and keeps them, where it is another one."""
    if settings.results == settings.broker_url:
        return
    yield from _store("results", settings.results, keeps=True, fix="start it, or set LAYA_RESULT_URL")


def cache(settings: WorkerSettings) -> Iterator[Finding]:
    """Whether the cache's server answers and may forget, where a hook needs it."""
    if not any(path.rpartition(".")[2] == "SkipCache" for path in settings.hooks):
        return
    from hooks.cache_settings import CacheSettings  # noqa: PLC0415 - only where it is used

    url = CacheSettings().cache_url
    if url is None:
        yield Finding(Verdict.HINT, "cache", "on the broker's server, which must not evict: set LAYA_CACHE_URL")
        return
    yield from _store("cache", url, keeps=False, fix="start it, or set LAYA_CACHE_URL; answers are right without it")


def _store(name: str, url: str, *, keeps: bool, fix: str) -> Iterator[Finding]:
    """Whether a server answers, and has the policy of eviction that its role needs."""
    where = ";".join(map(maybe_sanitize_url, url.split(";")))
    if url.startswith("sentinel://"):
        return
    try:
        with Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2) as client:
            facts = client.info()
    except RedisError as error:
        yield Finding(Verdict.FAULT if keeps else Verdict.HINT, name, f"{where}: {error}; {fix}")
        return
    policy, bound = facts.get("maxmemory_policy", "unknown"), facts.get("maxmemory", 0)
    if keeps and policy != "noeviction":
        yield Finding(Verdict.FAULT, name, f"{where}: {policy} loses results; set maxmemory-policy noeviction")
    elif not keeps and (policy == "noeviction" or not bound):
        yield Finding(Verdict.HINT, name, f"{where}: {policy}, maxmemory {bound}: bound it, with allkeys-lfu")
    else:
        yield Finding(Verdict.GOOD, name, f"{where}, {policy}")


def device(settings: WorkerSettings) -> Iterator[Finding]:
    """Where a worker would compute."""
    try:
        from laya.device import pick_device  # noqa: PLC0415 - imports torch
    except ModuleNotFoundError:
        yield Finding(Verdict.HINT, "device", "torch is not installed: this machine can ask, not serve")
        return
    try:
        yield Finding(Verdict.GOOD, "device", str(pick_device(settings.device)))
    except (RuntimeError, ValueError) as error:
        yield Finding(Verdict.FAULT, "device", f"LAYA_DEVICE: {error}")


def memory(settings: WorkerSettings) -> Iterator[Finding]:
    """What is free where checkpoints are held."""
    free = free_memory(settings.device)
    if free is None:
        yield Finding(Verdict.HINT, "memory", "cannot be read here")
        return
    verdict = Verdict.GOOD if free >= SMALL_MEMORY else Verdict.HINT
    short = "" if verdict is Verdict.GOOD else ": little for a checkpoint; lower LAYA_MAX_LOADED"
    yield Finding(verdict, "memory", f"{free / GIBIBYTE:.1f} GiB free{short}")


def free_memory(wanted: str | None) -> int | None:
    """Bytes that are free on the device that a worker would take: a GPU's own, else this machine's."""
    try:
        import torch  # noqa: PLC0415 - a backend has none

        from laya.device import pick_device  # noqa: PLC0415

        chosen = pick_device(wanted)
        if chosen.type == "cuda":
            return int(torch.cuda.mem_get_info(chosen)[0])
    except (ModuleNotFoundError, RuntimeError, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # macOS does not tell
        return None


def checkpoints(settings: WorkerSettings) -> Iterator[Finding]:
    """Whether the registered checkpoints are on this machine."""
    for checkpoint in settings.checkpoints:
        place, here, found = state_of(checkpoint)
        missing = Verdict.FAULT if checkpoint.is_path else Verdict.HINT
        yield Finding(Verdict.GOOD if found else missing, checkpoint.name, f"{place}: {here}")


def register(to: typer.Typer) -> None:
    """Add the command."""
    to.command(
        short_help="Check settings, server, device and checkpoints.",
        epilog="Example: LAYA_BROKER_URL=rediss://queue.example:6380/0 laya-workers doctor",
    )(doctor)
