"""How a deployment looks on a terminal: from an overview that is given, without a server."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from worker.cli.overview import Items, Trend, short_names, view
from worker.cli.screen import duration
from worker.overview import Overview, QueueView, SilentWorker, WorkerView, named

NOW = 10_000.0


def worker(node: str, **facts: Any) -> WorkerView:
    said: dict[str, Any] = {
        "resident": [],
        "since": {},
        "loads": {},
        "loading": {},
        "failures": {},
        "pinned": [],
        "max_loaded": 2,
        "serves": [],
        "device": "cuda:0",
        "in_flight": 0,
        "answered": {},
        "failed": 0,
        "rates": {},
        "pid": 4711,
        "host": "rack",
        "started": NOW - 7300,
        "now": NOW,
        "clock_ahead": 0.01,
    }
    return WorkerView(node, said | facts)  # type: ignore[arg-type]


def queue(checkpoint: str, waiting: int = 0, **facts: Any) -> QueueView:
    known: dict[str, Any] = {"oldest": None, "held_by": (), "served_by": (), "loading_on": (), "rate": 0.0}
    return QueueView(checkpoint, waiting, **(known | facts))


def printed(seen: Overview, width: int, trend: dict[str, float] | None = None) -> list[str]:
    console = Console(width=width, file=StringIO())
    with console.capture() as capture:
        console.print(view(seen, width, trend))
    return capture.get().splitlines()


BUSY = Overview(
    at=NOW,
    workers=(
        worker(
            "gpu0@rack",
            resident=["multilingual", "english"],
            since={"multilingual": NOW - 5, "english": NOW - 200},
            pinned=["english"],
            loading={"papers": NOW - 1.5},
            in_flight=12,
            answered={"english": 12_000},
            failed=3,
            failures={"broken": {"at": NOW - 61, "reason": "no such directory: " + "x" * 300}},
        ),
    ),
    silent=(SilentWorker("gpu1@rack", ("papers",), (), ("papers",), {}),),
    queues=(
        queue("english", 230, oldest=12.3, held_by=("gpu0@rack",), served_by=("gpu0@rack",), rate=151.0),
        queue("papers", loading_on=("gpu0@rack",), served_by=("gpu0@rack",)),
        queue("orphan", 4, oldest=100.0),
        queue("unused", served_by=("gpu0@rack",)),
        queue("a-checkpoint-with-a-name-that-is-very-long-indeed", served_by=("gpu0@rack",)),
    ),
)


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    lines = printed(BUSY, width, {"english": 3.2})
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_everything_that_matters_is_shown(width: int) -> None:
    text = "\n".join(printed(BUSY, width, {"english": 3.2}))
    for words in (
        "1 worker, 1 silent",
        "234 waiting",
        "12 in flight",
        "3 errors",
        "english* 3 min",
        "loading papers 1.5 s",
        "does not answer",
        "announces papers",
        "+3.2",
        "gpu0 (loading)",
        "no worker serves it",
        "nobody yet",
        "failed to load broken 61 s ago: no such directory",
    ):
        assert words in text, words


@pytest.mark.parametrize("width", [50, 60])
def test_a_narrow_terminal_breaks_no_word_of_what_fits(width: int) -> None:
    text = "\n".join(printed(BUSY, width, {"english": 3.2}))
    for words in ("english* 3 min", "loading papers 1.5 s", "does not answer", "gpu0 (loading)", "in memory of"):
        assert words in text, words
    assert "answers/s" not in text


def test_a_wide_terminal_shows_the_process_and_its_counts() -> None:
    text = "\n".join(printed(BUSY, 120))
    for words in ("4711", "cuda:0", "12,000", "errors"):
        assert words in text, words
    assert "growth" not in text


@pytest.mark.parametrize(("ahead", "said"), [(3600.2, "60 min ahead of"), (-90.0, "90 s behind")])
def test_a_clock_that_is_wrong_is_said(ahead: float, said: str) -> None:
    one = worker("gpu1@rack", clock_ahead=ahead)
    assert f"gpu1@rack: its clock is {said} the broker's" in "\n".join(printed(Overview(NOW, (one,), (), ()), 80))


def test_without_a_worker_the_queues_are_shown_alone() -> None:
    lines = printed(Overview(NOW, (), (), (queue("english", 2, oldest=1.0),)), 80)
    assert lines[0].startswith("0 workers · 0 of 1 in memory · 2 waiting")
    assert not any("holds" in line for line in lines)


def test_an_item_is_never_broken_that_fits_a_line() -> None:
    console = Console(width=24, file=StringIO())
    with console.capture() as capture:
        console.print(Items([Text("english 3 min"), Text("papers 45 s"), Text("contracts 2 h")]))
    assert capture.get().splitlines() == ["english 3 min,", "papers 45 s,", "contracts 2 h"]


def test_growth_is_taken_over_the_last_ten_seconds() -> None:
    trend = Trend()
    assert trend.add(Overview(0.0, (), (), (queue("english", 10),))) == {}
    assert trend.add(Overview(5.0, (), (), (queue("english", 20), queue("new", 1)))) == {"english": 2.0}
    for second in range(10, 60, 5):
        growth = trend.add(Overview(float(second), (), (), (queue("english", 20),)))
    assert growth == {"english": 0.0}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-1, "0.0 s"), (0.44, "0.4 s"), (9.96, "10 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (200_000, "2 d")],
)
def test_a_duration_in_few_letters(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_node_loses_its_host_where_the_name_alone_is_enough() -> None:
    nodes = ["gpu0@a", "gpu0@b", "gpu1@b"]
    assert short_names(nodes) == {"gpu0@a": "gpu0@a", "gpu0@b": "gpu0@b", "gpu1@b": "gpu1"}


@pytest.mark.parametrize(
    ("wanted", "nodes"),
    [("gpu0@a", ["gpu0@a"]), ("gpu0", ["gpu0@a", "gpu0@b"]), ("b", ["gpu0@b", "gpu1@b"]), ("gpu", [])],
)
def test_workers_are_meant_by_node_name_or_host(wanted: str, nodes: list[str]) -> None:
    assert named(["gpu0@a", "gpu0@b", "gpu1@b"], wanted) == nodes
