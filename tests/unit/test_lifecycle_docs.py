"""The pages on the lifecycle and on hooks say what the code says: names, diagrams, the same in both languages, blocks.

Whether the sentences are true is what `tests/lifecycle` shows, sentence by sentence.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import inspect
import io
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import laya
import laya.hooks
from laya import Agent, PredictContext, Router, phases
from laya.catalog import DEFAULT_MODELS
from laya.hooks import HOOK_EVENTS, clear_default_hooks

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden" / "checkpoints"
ENGLISH, GERMAN = ROOT / "docs" / "lifecycle.md", ROOT / "docs" / "de" / "lebenszyklus.md"
HOOKS = ROOT / "docs" / "hooks.md"
PAGES = [ENGLISH, GERMAN, HOOKS]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)

CALLS: list[Any] = [
    Agent.__init__,
    Agent.predict_batch,
    Agent.system_one,
    Router.__init__,
    Router.predict,
    Router.predict_batch,
    Router.route,
]

# What a page may name besides: how it calls a context, what Python writes on an exception, and the blocks' own names.
OTHERS = {"ctx", "__notes__", "loop", "hook", "checkpoints", "repository", "subfolder"}


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of each fenced block."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def diagrams(page: Path) -> list[str]:
    return [text for language, text in blocks(page) if language == "mermaid"]


def inline_code(page: Path) -> list[str]:
    """What stands in backticks in the running text, names of files left out: test_docs.py looks for those."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [code for code in re.findall(r"`([^`\n]+)`", text) if not code.startswith("examples/")]


def identifiers(code: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", code))


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every name that the public interface has: classes, methods, options, context fields, keys of results."""
    names = set(dir(builtins)) | set(dir(contextvars)) | set(HOOK_EVENTS) | set(DEFAULT_MODELS) | OTHERS | {"laya"}
    names |= {phases.LOAD, phases.TOKENISE, phases.BATCH_WAIT, phases.FORWARD}
    names |= set(laya.__all__) | set(dir(laya.hooks)) | {field.name for field in fields(PredictContext)}
    for owner in (Agent, Router, PredictContext, laya.BaseHook, laya.AsyncHook):
        names |= {name for name in dir(owner) if not name.startswith("_")}
    for call in CALLS:
        names |= set(inspect.signature(call).parameters)
    agent = Agent(str(GOLDEN / "typed-decisions"), device="cpu")
    result = agent.predict("Hello", {"q": {"type": "noul", "instructions": "Is it a greeting?"}})
    router = Router(models={}, device="cpu")
    router.attach("english", agent)
    routed = router.predict("Hello", {}, model="english")
    return names | set(result) | set(result["usage"]) | set(routed) | set(routed["routing"]) | {"hooks"}


def attributes_of(owner: str) -> set[str]:
    return {
        "ctx": {field.name for field in fields(PredictContext)} | {"skip", "when_computed"},
        "Agent": set(dir(Agent)),
        "Router": set(dir(Router)),
        "hooks": set(dir(laya.hooks)),
        "laya": set(laya.__all__) | {"hooks"},
    }[owner]


@EACH_PAGE
def test_every_name_in_backticks_exists(page: Path, known: set[str]) -> None:
    named = {name for code in inline_code(page) for name in identifiers(code)}
    assert named - known == set()


@EACH_PAGE
def test_every_dotted_name_exists_where_it_is_said_to(page: Path) -> None:
    text = " ".join([*inline_code(page), *diagrams(page)])
    dotted = re.findall(r"\b(ctx|Agent|Router|hooks|laya)\.([A-Za-z_]\w*)", text)
    assert dotted
    assert [f"{owner}.{name}" for owner, name in dotted if name not in attributes_of(owner)] == []


def test_both_languages_name_the_same_names_in_the_same_sections() -> None:
    def sections(page: Path) -> list[list[str]]:
        parts = re.split(r"^## .*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        return [
            sorted(set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", part, flags=re.MULTILINE | re.DOTALL))))
            for part in parts
        ]

    assert sections(ENGLISH) == sections(GERMAN)


def test_both_languages_have_the_same_points_in_each_section() -> None:
    def points(page: Path) -> list[int]:
        parts = re.split(r"^## .*$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        return [len(re.findall(r"^(?:- |\d\. |\| )", part, flags=re.MULTILINE)) for part in parts]

    assert points(ENGLISH) == points(GERMAN)


def skeleton(diagram: str) -> str:
    """A diagram without its words: those of a label go, and the names of code in it stay."""
    kept = []
    for line in diagram.splitlines():
        names = re.findall(r"ctx\.\w+|on_\w+|\w+(?=\()", line)
        shape = re.sub(r'"[^"]*"', '""', line.partition(": ")[0] if ">>" in line or "Note" in line else line)
        words = re.match(r"\s*(opt|alt|else|participant \w+)\b", shape)
        kept.append((words.group(0) if words else shape) + " " + " ".join(names))
    return "\n".join(kept)


def test_both_languages_draw_the_same_diagrams() -> None:
    english, german = diagrams(ENGLISH), diagrams(GERMAN)
    assert len(english) == 4
    assert [skeleton(diagram) for diagram in english] == [skeleton(diagram) for diagram in german]


@pytest.mark.parametrize("page", [ENGLISH, GERMAN], ids=lambda page: page.name)
def test_diagrams_are_balanced(page: Path) -> None:
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(list(blocks(page)))
    for diagram in diagrams(page):
        lines = diagram.splitlines()
        assert lines[0] in {"flowchart TD", "sequenceDiagram"}
        opened = [line for line in lines if re.match(r"\s*(opt|alt|loop|par|critical|subgraph)\b", line)]
        assert len(opened) == len([line for line in lines if line.strip() == "end"])
        for line in lines:
            assert line.count('"') % 2 == 0, line
            assert all(line.count(left) == line.count(right) for left, right in ("()", "[]", "{}")), line
            assert ";" not in line, "a semicolon ends a statement"


def test_every_node_of_a_flowchart_is_reached_and_labelled_once() -> None:
    flowcharts = [text for page in (ENGLISH, GERMAN) for text in diagrams(page) if text.startswith("flowchart")]
    assert flowcharts
    for diagram in flowcharts:
        labelled = re.findall(r"(\w+)(?:\(\[|\[|\{)\"", diagram)
        ends = re.findall(r"^\s*(\w+).*?(?:-->|\.->)\s*(\w+)", diagram, flags=re.MULTILINE)
        assert len(labelled) == len(set(labelled))
        assert {node for pair in ends for node in pair} == set(labelled)
        assert set(labelled) - {target for _, target in ends} == {"enter"}


def test_every_event_is_in_the_table_and_in_a_diagram_of_each_language() -> None:
    for page in (ENGLISH, GERMAN):
        drawn = " ".join(diagrams(page))
        rows = re.findall(r"^\| `(on_\w+)` \|", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert rows == list(HOOK_EVENTS)
        assert [event for event in HOOK_EVENTS if event not in drawn] == []


def test_the_page_on_hooks_has_every_event_and_every_rule_of_the_interface() -> None:
    page = HOOKS.read_text(encoding="utf-8")
    wanted = [
        *HOOK_EVENTS,
        *("hooks_raise", "hooks_timeout", "hooks_concurrent", "raise_errors", "AsyncHook", "BaseHook"),
        *("set_default_hooks", "add_default_hook", "clear_default_hooks", "default_hooks"),
        *("add_hook", "remove_hook", "hooks_installed", "TimeoutError", "RuntimeWarning", "TypeError", "ValueError"),
    ]
    assert [name for name in wanted if name not in page] == []


@EACH_PAGE
def test_the_code_of_a_page_runs_block_by_block(page: Path) -> None:
    names: dict[str, Any] = {
        "checkpoints": {
            "english": str(GOLDEN / "typed-decisions"),
            "multilingual": str(GOLDEN / "multilingual"),
        }
    }
    python = [text for language, text in blocks(page) if language == "python"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for number, block in enumerate(python):
                exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    finally:
        clear_default_hooks()
    assert python or page is not HOOKS
