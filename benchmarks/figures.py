"""A measured figure beside its limit: how it is held, printed and saved. Shared by every command in `benchmarks`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        name: what was measured, with what was simulated named as such.
        value: the measurement, in `unit`.
        unit: `"x"` for a ratio, else a unit.
        bar: the requirement as text, empty for a figure without one.
        limit: the number of the bar, None without one.
        holds: whether the value keeps the bar; True without one.
    """

    name: str
    value: float
    unit: str
    bar: str = ""
    limit: float | None = None
    holds: bool = True


def at_least(name: str, value: float, limit: float, unit: str = "x") -> Figure:
    """A figure that must not be below `limit`."""
    return Figure(name, value, unit, f">= {limit:g} {unit}", limit, value >= limit)


def at_most(name: str, value: float, limit: float, unit: str = "x") -> Figure:
    """A figure that must not be above `limit`."""
    return Figure(name, value, unit, f"<= {limit:g} {unit}", limit, value <= limit)


def told(name: str, value: float, unit: str) -> Figure:
    """A figure without a bar."""
    return Figure(name, value, unit)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A command's parser, with the options that all commands have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: whether it runs, not how fast it is")
    return parser


def shown(value: float) -> str:
    """A value with three digits that count, and none of them as a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def report(title: str, figures: Sequence[Figure], path: Path | None = None) -> int:
    """Print the figures beside their bars, write them to `path`, and return the exit status: 1 if a bar is missed."""
    table = Table(title=title, title_justify="left", header_style="bold", min_width=70)
    for column, justify in (("figure", "left"), ("value", "right"), ("bar", "right"), ("", "center")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]  # one of rich's own words
    for figure in figures:
        verdict = "" if not figure.bar else "[green]holds[/]" if figure.holds else "[red]missed[/]"
        table.add_row(figure.name, f"{shown(figure.value)} {figure.unit}", figure.bar, verdict)
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    if path is not None:
        path.write_text(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n", encoding="utf-8")
    return int(any(not figure.holds for figure in figures))
