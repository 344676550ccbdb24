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


def over_time(
    path: Path,
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    marks: Mapping[str, float],
) -> None:
    """Write panels of curves over seconds as a PNG, one above the other, by the label of their y axis; marks are times.

    The y axes are logarithmic from 1 up: what is compared differs by orders of magnitude.
    """
    figure, rows = plt.subplots(len(panels), figsize=(8, 3.2 * len(panels)), dpi=150, sharex=True, squeeze=False)
    for axes, (y_label, curves) in zip(rows[:, 0], panels.items(), strict=True):
        for (name, points), colour in zip(curves.items(), COLOURS, strict=False):
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=colour, linewidth=2, label=name)
        for label, at in marks.items():
            axes.axvline(at, color=INK, linewidth=1, linestyle="--")
            if axes is rows[0, 0]:
                place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "xytext": (4, -10)}
                axes.annotate(label, (at, 1), color=INK, fontsize=8, **place)
        axes.set_yscale("symlog", linthresh=1)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_ylabel(y_label, color=INK)
        axes.grid(color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    rows[0, 0].set_title(title, loc="left", color=INK, fontsize=11, pad=26)
    rows[0, 0].legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)
    rows[-1, 0].set_xlabel("seconds", color=INK)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
