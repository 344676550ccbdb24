"""The small checkpoints on labelled texts: how often each answers right, by language and by wording of the question.

`python -m benchmarks.small [--json FILE] [--tickets FILE] [--calibrate]`; the checkpoints are built first where they are not
there yet. `--calibrate` prints the scales that minimise the log loss on the same texts, which is where those in
`laya.small_build` come from.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.figures import Figure, arguments, at_least, report, told
from laya import Agent, small
from laya.decoding import softmax
from laya.questions import parse_questions

DATA = Path(__file__).parents[1] / "tests" / "data" / "tickets"

BARS = {"multilingual": 84.0, "english": 88.0}
"""Per cent of tickets that must reach the right team, under the first wording; `english` is asked in English only."""

BATCH = 32


class Example(NamedTuple):
    """A text and the index of its right option."""

    language: str
    text: str
    right: int


class Task(NamedTuple):
    """A question with one right answer for each of its examples."""

    name: str
    question: dict[str, Any]
    examples: list[Example]

    def in_english(self) -> Task:
        """The same question about the English examples alone."""
        return self._replace(examples=[example for example in self.examples if example.language == "en"])


def routing(tickets: Path = DATA / "tickets.jsonl") -> list[Task]:
    """Which team a ticket is for, asked in several wordings."""
    rows = [json.loads(line) for line in tickets.read_text(encoding="utf-8").splitlines()]
    tasks = []
    for wording in _read("wordings.json"):
        labels = list(wording["criteria"])
        examples = [Example(row["language"], row["text"], labels.index(wording["teams"][row["team"]])) for row in rows]
        tasks.append(Task(f"routing, {wording['name']}", _question("choice", wording), examples))
    return tasks


def choices() -> list[Task]:
    """Other questions with one right option."""
    tasks = []
    for entry in _read("choices.json"):
        labels = list(entry["criteria"])
        examples = [Example(one["language"], one["text"], labels.index(one["label"])) for one in entry["examples"]]
        tasks.append(Task(entry["name"], _question("choice", entry), examples))
    return tasks


def statements() -> list[Task]:
    """Statements that hold or not."""
    return [
        Task(
            f"{group['name']}, wording {number}",
            _question("noul", wording),
            [Example(one["language"], one["text"], int(one["holds"])) for one in group["examples"]],
        )
        for group in _read("statements.json")
        for number, wording in enumerate(group["wordings"], 1)
    ]


def levels() -> list[Task]:
    """Questions with levels. An example between two levels counts for neither and is left out."""
    tasks = []
    for group in _read("levels.json"):
        for number, wording in enumerate(group["wordings"], 1):
            top = len(wording["criteria"]) - 1
            placed = [(one, one["level"] * top) for one in group["examples"]]
            examples = [Example(one["language"], one["text"], int(at)) for one, at in placed if at == int(at)]
            tasks.append(Task(f"{group['name']}, wording {number}", _question("score", wording), examples))
    return tasks


def answers(agent: Agent, task: Task) -> list[dict[str, Any]]:
    """The answer to each example."""
    results = agent.predict_batch([one.text for one in task.examples], {"q": task.question}, batch_size=BATCH)
    return [result["answers"]["q"] for result in results]


def right(agent: Agent, task: Task) -> list[bool]:
    """Whether the likeliest option is the right one, example by example."""
    return [likeliest(answer) == one.right for answer, one in zip(answers(agent, task), task.examples, strict=True)]


def likeliest(answer: Mapping[str, Any]) -> int:
    """The index of an answer's likeliest option."""
    if answer["type"] == "noul":
        return int(answer["noul"] >= 0.5)  # noqa: PLR2004 - the likelier of two
    odds = list(answer["probabilities"].values())
    return odds.index(max(odds))


def accuracy(name: str, agent: Agent, tickets: Path) -> list[Figure]:
    """The figures of one checkpoint."""
    suited = Task.in_english if name == "english" else _as_it_is
    main, *others = [suited(task) for task in routing(tickets) if name != "english" or "German" not in task.name]
    hits = right(agent, main)
    figures = [at_least(f"{name}: {main.name}", _percent(hits), BARS[name], "%")]
    if name != "english":
        for language in dict.fromkeys(one.language for one in main.examples):
            own = [hit for hit, one in zip(hits, main.examples, strict=True) if one.language == language]
            figures.append(told(f"{name}: {main.name}, {language} ({len(own)})", _percent(own), "%"))
    figures += [told(f"{name}: {task.name}", _percent(right(agent, task)), "%") for task in others]
    kinds: Mapping[str, Callable[[], list[Task]]] = {
        "other choices": choices,
        "statements": statements,
        "levels": levels,
    }
    for kind, tasks in kinds.items():
        for task in map(suited, tasks()):
            figures.append(told(f"{name}: {kind}: {task.name}", _percent(right(agent, task)), "%"))
    sure = [answer["answer_confidence"] for answer in answers(agent, main)]
    return [*figures, told(f"{name}: mean answer_confidence, {main.name}", 100 * fmean(sure), "%")]


def calibrate(name: str, agent: Agent) -> dict[str, float]:
    """The scale of each question type, and the threshold of noul, that minimise the mean log loss over the tasks."""
    suited = Task.in_english if name == "english" else _as_it_is
    found = {}
    routed = [task for task in routing() if name != "english" or "German" not in task.name]
    for kind, tasks in (("choice", [*routed, *choices()]), ("score", levels())):
        scale = _own_scale(agent, kind)
        raw = [
            [([logit / scale for logit in row], one.right) for row, one in zip(_logits(agent, task), task.examples)]
            for task in map(suited, tasks)
        ]
        found[kind] = min(_candidates(1, 400), key=lambda scale, raw=raw: _log_loss(raw, scale))
    scale, threshold = _own_scale(agent, "noul"), agent.cfg["noul_threshold"]
    raw = [
        [([0.0, (row[1] - row[0]) / scale + threshold], one.right) for row, one in zip(_logits(agent, t), t.examples)]
        for t in map(suited, statements())
    ]
    grid = [(scale, at / 500) for scale in _candidates(5, 100) for at in range(100)]
    found["noul"], found["noul_threshold"] = min(grid, key=lambda one: _log_loss(raw, *one))
    return found


def _log_loss(tasks: Iterable[Iterable[tuple[Sequence[float], int]]], scale: float, threshold: float = 0.0) -> float:
    """The mean over tasks of the mean log loss; a threshold counts against the second option."""
    losses = []
    for rows in tasks:
        odds = [
            softmax([scale * (value - (threshold if at == 1 else 0.0)) for at, value in enumerate(row)])[right]
            for row, right in rows
        ]
        losses.append(fmean(-math.log(max(p, 1e-9)) for p in odds))
    return fmean(losses)


def _logits(agent: Agent, task: Task) -> list[tuple[float, ...]]:
    (question,) = parse_questions({"q": task.question})
    kind, cfg = agent.checkpoint.kind, agent.cfg
    rows = [kind.encode(one.text, [question], cfg["max_len"], cfg["head_max_len"]).rows[0] for one in task.examples]
    return [row.logits for row in kind.forward(rows)]


def _candidates(low: float, high: float) -> list[float]:
    """Numbers from low to high, each 5 % above the one before."""
    return [low * 1.05**step for step in range(int(math.log(high / low) / math.log(1.05)) + 1)]


def _own_scale(agent: Agent, kind: str) -> float:
    return float(agent.cfg["scale"][("choice", "score", "noul").index(kind)])


def _as_it_is(task: Task) -> Task:
    return task


def _percent(hits: Sequence[bool]) -> float:
    return 100 * fmean(hits)


def _question(kind: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind, **{key: entry[key] for key in ("instructions", "criteria") if key in entry}}


def _read(file: str) -> Any:
    return json.loads((DATA / file).read_text(encoding="utf-8"))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and save; the exit status is 1 if a bar is missed."""
    parser = arguments(__doc__)
    parser.add_argument("--tickets", type=Path, default=DATA / "tickets.jsonl", help="labelled tickets, one a line")
    parser.add_argument("--calibrate", action="store_true", help="print the scales that suit the texts, and stop")
    chosen = parser.parse_args(argv)
    agents = {name: Agent(path, device="cpu") for name, path in small.checkpoints().items()}
    if chosen.calibrate:
        for name, agent in agents.items():
            print(name, {key: float(f"{value:.3g}") for key, value in calibrate(name, agent).items()})
        return 0
    figures = [figure for name, agent in agents.items() for figure in accuracy(name, agent, chosen.tickets)]
    return report("Small checkpoints", figures, chosen.json)


if __name__ == "__main__":
    sys.exit(main())
