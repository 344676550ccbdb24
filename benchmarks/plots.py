"""Pictures of figures, for those who asked for one with `--plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

INK, GRID = "#1f2933", "#d5dbe1"
COLOURS = ("#1b7f79", "#d1495b", "#3d5a98", "#b8860b")


def lines(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    limits: Mapping[str, float],
) -> None:
    """Write curves over a doubling x axis as a PNG, each named at its end, and limits as dashed lines."""
    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=150)
    for (name, points), colour in zip(curves.items(), COLOURS, strict=False):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=colour, linewidth=2, marker="o", markersize=4, label=name)
        axes.annotate(name, (xs[-1], ys[-1]), xytext=(6, 0), textcoords="offset points", color=colour, va="center")
    for name, limit in limits.items():
        axes.axhline(limit, color=INK, linewidth=1, linestyle="--")
        axes.annotate(name, (1, limit), xytext=(0, 4), textcoords="offset points", color=INK)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.9, max(x for points in curves.values() for x, _ in points) * 2.2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_formatter(mpl.ticker.ScalarFormatter())
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
