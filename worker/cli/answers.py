"""How answers look on a terminal: one table for the answers of one request, with each question's distribution as bars.

Only shapes results into rich's renderables; where they come from, and what is printed around them, is the commands'.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 12
EIGHTHS = " ▏▎▍▌▋▊▉"
SHOWN_OPTIONS = 6
"""Options of one question that are shown, the likeliest first; the rest are summed up in a line."""


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of `share` (0 to 1) of `width` cells, in eighths of a cell."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (EIGHTHS[rest] if rest else "")).ljust(width)


def fitting(text: str, cells: int) -> str:
    """The beginning of `text` that surely fits into `cells`, with an ellipsis where it was cut.

    Spacing marks (Devanagari's vowel signs) count as a cell, as in most terminals; rich counts them as none.
    """
    widths = [max(cell_len(letter), unicodedata.category(letter) == "Mc") for letter in text]
    if sum(widths) <= cells:
        return text
    used, kept = 1, ""  # the ellipsis is one cell
    for letter, width in zip(text, widths, strict=True):
        if used + width > cells:
            break
        used, kept = used + width, kept + letter
    return kept.rstrip() + "…"


def percent(share: float) -> str:
    """`0.934` as `93 %`."""
    return f"{share:.0%}".replace("%", " %")


def confidence_style(confidence: float) -> str:
    """Green where an answer is fairly sure, yellow where it is not, red where it is little more than a guess."""
    return "green" if confidence >= 0.75 else "yellow" if confidence >= 0.5 else "red"


def short_answer(answer: Mapping[str, Any]) -> str:
    """The answer in a word or two: a choice's label, a score's figure, yes or no."""
    if answer["type"] == "choice":
        return str(answer["choice"])
    if answer["type"] == "score":
        return f"{answer['score']:.1f} of {len(answer['legend']) - 1}"
    return "yes" if answer["noul"] >= 0.5 else "no"


def distribution(answer: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Every option of an answer with its probability, the likeliest first; a score's levels in their order."""
    if answer["type"] == "choice":
        return sorted(answer["probabilities"].items(), key=lambda item: -item[1])
    if answer["type"] == "score":
        return [(answer["legend"][level], share) for level, share in answer["probabilities"].items()]
    return [("yes", answer["noul"]), ("no", round(1 - answer["noul"], 4))]


def bars(answer: Mapping[str, Any]) -> Table:
    """The distribution of an answer, one row an option."""
    options = distribution(answer)
    best = max(share for _, share in options)
    if len(options) > SHOWN_OPTIONS:
        rest = options[SHOWN_OPTIONS:]
        options = [*options[:SHOWN_OPTIONS], (f"{len(rest)} others", sum(share for _, share in rest))]
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column()
    for label, share in options:
        style = "bold" if share == best else "dim"
        length = Text(bar(share), style="cyan" if share == best else "bright_black")
        grid.add_row(length, Text(percent(share), style=style), Text(label, style=style))
    return grid


def answers_table(result: Mapping[str, Any]) -> RenderableType:
    """All answers of one result: question, answer, confidence, distribution."""
    table = Table(box=None, padding=(0, 2, 1, 0), show_edge=False, header_style="bold")
    for header in ("question", "answer", "confidence", "distribution"):
        table.add_column(header, no_wrap=header != "distribution", overflow="ellipsis")
    for question, answer in result["answers"].items():
        sure = answer["answer_confidence"]
        figure = Text(percent(sure), style=confidence_style(sure))
        if answer.get("low_confidence"):
            figure.append(" (below the gate)", style="dim")
        table.add_row(Text(str(question)), Text(short_answer(answer), style="bold"), figure, bars(answer))
    return table
