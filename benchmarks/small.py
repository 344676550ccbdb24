"""The small checkpoints on labelled texts: how often each answers right, by language and by wording of the question.

`python -m benchmarks.small [--json FILE] [--tickets FILE] [--calibrate]`; the checkpoints are built first where they
are not there yet. `--calibrate` prints the scales that minimise the log loss on the same texts, which is where those
in `laya.small_build` come from.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.figures import Figure, arguments, at_least, report, told
from laya import Agent, small
from laya.decoding import softmax
from laya.questions import parse_questions

DATA = Path(__file__).parents[1] / "tests" / "data" / "tickets"

BARS = {"multilingual": 84.0, "english": 88.0}
"""Per cent of tickets that must reach the right team under the first wording; `english` is asked in English only."""

Odds = Sequence[float]


class Text(NamedTuple):
    """A text and its language, ISO 639-1."""

    language: str
    text: str


class Panel(NamedTuple):
    """Texts, the same questions about each, and for each question the index of every text's right option.

    None where a question has no option that is right for a text.
    """

    name: str
    texts: list[Text]
    questions: dict[str, dict[str, Any]]
    right: dict[str, list[int | None]]

    def only(self, language: str) -> Panel:
        """The texts of one language."""
        kept = [place for place, text in enumerate(self.texts) if text.language == language]
        right = {name: [places[place] for place in kept] for name, places in self.right.items()}
        return self._replace(texts=[self.texts[place] for place in kept], right=right)

    def without(self, question: str) -> Panel:
        """The panel without one of its questions."""
        return self._replace(questions={name: one for name, one in self.questions.items() if name != question})


def routing(tickets: Path = DATA / "tickets.jsonl") -> Panel:
    """Which team a ticket is for, asked in several wordings."""
    rows = [json.loads(line) for line in tickets.read_text(encoding="utf-8").splitlines()]
    panel = Panel("routing", [Text(row["language"], row["text"]) for row in rows], {}, {})
    for wording in _read("wordings.json"):
        labels = list(wording["criteria"])
        panel.questions[wording["name"]] = _question("choice", wording)
        panel.right[wording["name"]] = [labels.index(wording["teams"][row["team"]]) for row in rows]
    return panel


def choices() -> list[Panel]:
    """Other questions with one right option."""
    panels = []
    for entry in _read("choices.json"):
        labels = list(entry["criteria"])
        right: list[int | None] = [labels.index(one["label"]) for one in entry["examples"]]
        panels.append(
            Panel("choice", _texts(entry), {entry["name"]: _question("choice", entry)}, {entry["name"]: right})
        )
    return panels


def statements() -> list[Panel]:
    """Statements that hold or not, in several wordings."""
    panels = []
    for group in _read("statements.json"):
        asked = _wordings("noul", group)
        right: list[int | None] = [int(one["holds"]) for one in group["examples"]]
        panels.append(Panel("statement", _texts(group), asked, dict.fromkeys(asked, right)))
    return panels


def levels() -> list[Panel]:
    """Questions with levels, in several wordings. An example may fall between the levels of one of them."""
    panels = []
    for group in _read("levels.json"):
        asked = _wordings("score", group)
        right: dict[str, list[int | None]] = {}
        for name, question in asked.items():
            places = [one["level"] * (len(question["criteria"]) - 1) for one in group["examples"]]
            right[name] = [int(place) if place == int(place) else None for place in places]
        panels.append(Panel("level", _texts(group), asked, right))
    return panels


def suited(name: str, tickets: Path = DATA / "tickets.jsonl") -> list[Panel]:
    """All panels that the checkpoint `name` can be held against, routing first."""
    panels = [routing(tickets), *choices(), *statements(), *levels()]
    if name != "english":
        return panels
    return [panel.only("en").without("in German") for panel in panels]


def accuracy(name: str, agent: Agent, tickets: Path) -> list[Figure]:
    """The figures of one checkpoint."""
    figures: list[Figure] = []
    for panel in suited(name, tickets):
        results = agent.predict_batch([one.text for one in panel.texts], panel.questions)
        for asked in panel.questions:
            answers = [result["answers"][asked] for result in results]
            hits = [
                None if right is None else _likeliest(answer) == right
                for answer, right in zip(answers, panel.right[asked], strict=True)
            ]
            title = f"{name}: {panel.name}, {asked}"
            if figures:
                figures.append(told(title, _percent(hits), "%"))
                continue
            sure = 100 * fmean(answer["answer_confidence"] for answer in answers)
            figures = [
                at_least(title, _percent(hits), BARS[name], "%"),
                *by_language(title, panel.texts, hits),
                told(f"{title}: mean answer_confidence", sure, "%"),
            ]
    return figures


def by_language(title: str, texts: Sequence[Text], hits: Sequence[bool | None]) -> list[Figure]:
    """The share of right answers in each language, where there are several."""
    languages = list(dict.fromkeys(text.language for text in texts))
    shares = []
    for language in languages:
        own = [hit for hit, text in zip(hits, texts, strict=True) if text.language == language]
        shares.append(told(f"{title}: {language} ({len(own)})", _percent(own), "%"))
    return shares if len(languages) > 1 else []


def calibrate(name: str, agent: Agent) -> dict[str, float]:
    """The scale of each question type, and the threshold of noul, of the least mean log loss over all questions."""
    found: dict[str, float] = {}
    panels = suited(name)
    for kind, grid in (("choice", _candidates(1, 400)), ("score", _candidates(1, 400))):
        likeness = _likeness(agent, panels, kind)
        losses = {scale: _log_loss(likeness, scale) for scale in grid}
        found[kind] = min(losses, key=losses.__getitem__)
    likeness = _likeness(agent, panels, "noul")
    both = {
        (scale, at / 500): _log_loss(likeness, scale, at / 500) for scale in _candidates(5, 100) for at in range(100)
    }
    found["noul"], found["noul_threshold"] = min(both, key=both.__getitem__)
    return found


def _likeness(agent: Agent, panels: Iterable[Panel], kind: str) -> list[list[tuple[Odds, int]]]:
    """For each question of one type, each text's likeness to the options and the right option."""
    found: list[list[tuple[Odds, int]]] = []
    scale = agent.cfg["scale"][("choice", "score", "noul").index(kind)]
    threshold = agent.cfg["noul_threshold"] if kind == "noul" else 0.0
    for panel in panels:
        for asked, definition in panel.questions.items():
            if definition["type"] != kind:
                continue
            (question,) = parse_questions({asked: definition})
            encoded = [
                agent.checkpoint.kind.encode(one.text, [question], agent.cfg["max_len"], agent.cfg["head_max_len"])
                for one in panel.texts
            ]
            scores = agent.checkpoint.kind.forward([one.rows[0] for one in encoded])
            rows = [[score.logits[0] / scale - threshold, *(x / scale for x in score.logits[1:])] for score in scores]
            pairs = zip(rows, panel.right[asked], strict=True)
            found.append([(row, right) for row, right in pairs if right is not None])
    return found


def _log_loss(questions: Iterable[Iterable[tuple[Odds, int]]], scale: float, threshold: float = 0.0) -> float:
    """The mean over questions of the mean log loss; a threshold speaks for the first option."""
    losses = []
    for rows in questions:
        odds = [
            softmax([scale * (row[0] + threshold), *(scale * value for value in row[1:])])[right] for row, right in rows
        ]
        losses.append(fmean(-math.log(max(p, 1e-9)) for p in odds))
    return fmean(losses)


def _candidates(low: float, high: float) -> list[float]:
    """Numbers from low to high, each 5 % above the one before."""
    return [low * 1.05**step for step in range(int(math.log(high / low) / math.log(1.05)) + 1)]


def _likeliest(answer: Mapping[str, Any]) -> int:
    if answer["type"] == "noul":
        return int(answer["noul"] >= 0.5)
    odds = list(answer["probabilities"].values())
    return odds.index(max(odds))


def _percent(hits: Iterable[bool | None]) -> float:
    return 100 * fmean(hit for hit in hits if hit is not None)


def _wordings(kind: str, group: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{group['name']} {place}": _question(kind, one) for place, one in enumerate(group["wordings"], 1)}


def _question(kind: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind, **{key: entry[key] for key in ("instructions", "criteria") if key in entry}}


def _texts(entry: Mapping[str, Any]) -> list[Text]:
    return [Text(one["language"], one["text"]) for one in entry["examples"]]


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
