"""How a deployment looks on a terminal: a line of totals, a table of workers, a table of queues, what went wrong.

Shapes a `worker.overview.Overview` into rich's renderables, for a narrow terminal with fewer columns; asks nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from worker.cli.answers import fitting
from worker.cli.screen import duration
from worker.health import CLOCK_S
from worker.overview import Overview, QueueView, SilentWorker, WorkerView

WIDE, NARROW = 100, 70
"""Cells from which a terminal gets every column, and below which it gets the fewest."""

TREND_SECONDS = 10.0
"""How far back a queue's growth is taken from."""

SHOWN_FAILURES = 4

LONG_WAIT = 10.0
"""Seconds from which the oldest message is shown as a warning."""


class Items:
    """Short texts beside each other, as many to a line as fit; none is broken that fits a line."""

    def __init__(self, items: Sequence[Text], separator: str = ",") -> None:
        """Take the texts, and what stands behind each but the last."""
        self._items = items
        self._separator = separator

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the longest of them to all on one line."""
        del console
        widths = [item.cell_len for item in self._items] or [0]
        most = options.max_width
        return Measurement(min(max(widths) + 1, most), min(sum(widths) + 2 * len(widths), most))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fill line after line."""
        del console
        line = Text()
        for place, item in enumerate(self._items):
            behind = self._separator if place < len(self._items) - 1 else ""
            if line and line.cell_len + 1 + item.cell_len + len(behind) > options.max_width:
                yield line
                line = Text()
            line = Text.assemble(line, " " if line else "", item, behind)
        yield line


class Trend:
    """How fast each queue has grown, from one look to the next."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._looks: deque[tuple[float, Mapping[str, int]]] = deque()

    def add(self, seen: Overview) -> dict[str, float]:
        """Take one more look; messages a second by checkpoint, over the last ten seconds. Empty after the first."""
        self._looks.append((seen.at, {queue.checkpoint: queue.waiting for queue in seen.queues}))
        while len(self._looks) > 2 and self._looks[0][0] < seen.at - TREND_SECONDS:
            self._looks.popleft()
        then, before = self._looks[0]
        if seen.at <= then:
            return {}
        now = self._looks[-1][1]
        return {name: (now[name] - before[name]) / (seen.at - then) for name in now.keys() & before.keys()}


def view(seen: Overview, width: int, trend: Mapping[str, float] | None = None) -> RenderableType:
    """Everything, for a terminal of `width` cells; `trend` is by checkpoint, None where only one look was taken."""
    wide = width >= WIDE
    parts: list[RenderableType] = [totals(seen, wide=wide)]
    if seen.workers or seen.silent:
        parts += [Text(), workers_table(seen, width)]
    parts += [Text(), queues_table(seen, trend, width)]
    failures = [fitting(line, width) for line in (*failed_loads(seen), *wrong_clocks(seen))]
    if failures:
        parts += [Text(), *(Text(line, style="yellow") for line in failures)]
    return Group(*parts)


def totals(seen: Overview, *, wide: bool) -> Items:
    """The line above the tables."""
    count = len(seen.workers)
    line = Text(f"{count} worker{'' if count == 1 else 's'}", style="bold" if count else "bold red")
    if seen.silent:
        line.append(f", {len(seen.silent)} silent", style="bold red")
    in_memory = {name for worker in seen.workers for name in worker.holdings["resident"]}
    failed = sum(worker.holdings["failed"] for worker in seen.workers)
    facts = [
        f"{len(in_memory)} of {len(seen.queues)} {'checkpoints ' if wide else ''}in memory",
        f"{seen.waiting:,} waiting",
        f"{seen.in_flight:,} in flight",
        f"{figure(seen.rate)}{' answers' if wide else ''}/s",
    ]
    parts = [line, *map(Text, facts)]
    if failed:
        parts.append(Text(f"{failed:,} errors", style="yellow"))
    return Items(parts, " ·")


def workers_table(seen: Overview, width: int) -> Table:
    """One row a worker."""
    short = short_names([worker.node for worker in seen.workers] + [silent.node for silent in seen.silent])
    if width >= WIDE:
        names = ["worker", "pid", "up", "device", "holds, and since when"]
        names += ["in flight", "answers/s", "answered", "errors"]
    elif width >= NARROW:
        names = ["worker", "up", "holds, and since when", "flight", "answers/s"]
    else:
        names = ["worker", "holds, and since when", "flight"]
    table = _table(names, filling="holds, and since when", longest_name=28 if width >= WIDE else 16)
    for worker in seen.workers:
        _add_row(table, names, _worker_row(worker, short[worker.node]))
    for silent in seen.silent:
        _add_row(table, names, _silent_row(silent, short[silent.node]))
    return table


def queues_table(seen: Overview, trend: Mapping[str, float] | None, width: int) -> Table:
    """One row a checkpoint: those with something waiting stand out."""
    short = short_names([worker.node for worker in seen.workers])
    names = ["checkpoint", "waiting", "oldest", "growth/s", "answers/s", "in memory of"]
    if trend is None or width < NARROW:
        names.remove("growth/s")
    if width < NARROW:
        names.remove("answers/s")
    table = _table(names, filling="in memory of", longest_name=28 if width >= WIDE else 16)
    for queue in seen.queues:
        cells: dict[str, RenderableType] = {
            "checkpoint": Text(queue.checkpoint, style="bold"),
            "waiting": _waiting(queue),
            "oldest": _oldest(queue),
            "growth/s": _growth((trend or {}).get(queue.checkpoint, 0.0)),
            "answers/s": _rate(queue.rate),
            "in memory of": holders(queue, short),
        }
        _add_row(table, names, cells)
    return table


def holders(queue: QueueView, short: Mapping[str, str]) -> RenderableType:
    """Who answers a checkpoint's requests, in words where it is nobody."""
    if queue.held_by or queue.loading_on:
        names = [Text(short[node]) for node in queue.held_by]
        names += [Text(f"{short[node]} (loading)", style="yellow") for node in queue.loading_on]
        return Items(names)
    if queue.served_by:
        return Text("nobody yet", style="dim" if not queue.waiting else "yellow")
    return Text("no worker serves it", style="red" if queue.waiting else "dim")


def failed_loads(seen: Overview) -> Iterator[str]:
    """The latest failed loads, a line each."""
    found = [
        (worker.holdings["now"] - failure["at"], worker.node, name, failure["reason"])
        for worker in seen.workers
        for name, failure in worker.holdings["failures"].items()
    ]
    for ago, node, name, reason in sorted(found)[:SHOWN_FAILURES]:
        yield f"{node} failed to load {name} {duration(ago)} ago: {reason}"


def wrong_clocks(seen: Overview) -> Iterator[str]:
    """The workers whose machine's clock is not the broker's, a line each."""
    for worker in seen.workers:
        ahead = worker.holdings.get("clock_ahead")  # a worker of an older version does not tell
        if ahead is not None and abs(ahead) >= CLOCK_S:
            direction = "ahead of" if ahead > 0 else "behind"
            yield f"{worker.node}: its clock is {duration(abs(ahead))} {direction} the broker's"


def short_names(nodes: Sequence[str]) -> dict[str, str]:
    """Each node as it is shown: without its host where all are on one, or where nobody else has that name."""
    names = [node.partition("@")[0] for node in nodes]
    return {node: name if names.count(name) == 1 else node for node, name in zip(nodes, names, strict=True)}


def figure(rate: float) -> str:
    """A rate with as many digits as are worth reading."""
    return f"{rate:,.0f}" if rate >= 99.95 else f"{rate:.1f}"


def _table(names: Sequence[str], *, filling: str, longest_name: int) -> Table:
    """Without rows. The first column has names, `filling` takes the room that is left; the others are one line high."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim", expand=True, pad_edge=False)
    for place, name in enumerate(names):
        if place == 0:
            table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=longest_name)
        elif name == filling:
            table.add_column(name, ratio=1, overflow="fold")
        else:
            table.add_column(name, justify="left" if name == "device" else "right", no_wrap=True)
    return table


def _add_row(table: Table, names: Sequence[str], cells: Mapping[str, RenderableType]) -> None:
    table.add_row(*(cells.get(name, "") for name in names))


def _worker_row(worker: WorkerView, name: str) -> dict[str, RenderableType]:
    said = worker.holdings
    failed = said["failed"]
    return {
        "worker": Text(name, style="bold"),
        "pid": str(said["pid"]),
        "up": duration(said["now"] - said["started"]),
        "device": Text(said["device"]),
        "holds, and since when": _holds(worker),
        "in flight": _count(said["in_flight"]),
        "flight": _count(said["in_flight"]),
        "answers/s": _rate(worker.rate),
        "answered": _count(sum(said["answered"].values())),
        "errors": Text(f"{failed:,}", style="yellow" if failed else "dim"),
    }


def _silent_row(silent: SilentWorker, name: str) -> dict[str, RenderableType]:
    words = Text("does not answer", style="red")
    if silent.holds:
        words.append(f"; announces {', '.join(silent.holds)}", style="dim")
    return {"worker": Text(name, style="bold red"), "holds, and since when": words}


def _holds(worker: WorkerView) -> RenderableType:
    """Each checkpoint with its age: pinned ones marked, those that are being loaded last."""
    said = worker.holdings
    shown = []
    for name in said["resident"]:
        pin = "*" if name in said["pinned"] else ""
        one = Text(f"{name}{pin}", style="cyan")
        if name in said["since"]:
            one.append(f" {duration(said['now'] - said['since'][name])}", style="dim")
        shown.append(one)
    for name, since in said["loading"].items():
        shown.append(Text(f"loading {name} {duration(said['now'] - since)}", style="yellow"))
    return Items(shown) if shown else Text("nothing yet", style="dim")


def _waiting(queue: QueueView) -> Text:
    return Text(f"{queue.waiting:,}", style="bold" if queue.waiting else "dim")


def _oldest(queue: QueueView) -> Text:
    if queue.oldest is None:
        return Text("-", style="dim")
    return Text(duration(queue.oldest), style="yellow" if queue.oldest >= LONG_WAIT else "")


def _growth(rate: float) -> Text:
    if abs(rate) < 0.05:
        return Text("-", style="dim")
    return Text(f"{rate:+.1f}", style="yellow" if rate > 0 else "green")


def _rate(rate: float) -> Text:
    return Text(figure(rate), style="" if rate else "dim")


def _count(count: int) -> Text:
    return Text(f"{count:,}", style="" if count else "dim")
