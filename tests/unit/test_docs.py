"""The pages say what the code says: settings, dependencies, links, targets, files.

Blocks of code are the concern of test_readme.py, which runs or checks each one.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hooks.audit import AuditSettings
from hooks.cache_settings import CacheSettings
from producer.checkpoints import BUILT_IN
from producer.settings import ProducerSettings
from worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def variable(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"LAYA_{name.upper()}"


def shown_default(value: Any) -> str:
    """A default as it would be written into the environment; `-` where the variable is unset by default."""
    assert value is not PydanticUndefined
    if value == BUILT_IN:
        return "`" + ",".join(checkpoint.name for checkpoint in BUILT_IN) + "`"
    return "-" if value is None or value == () else f"`{str(value).lower()}`"


SETTINGS_OF_HOOKS: dict[str, dict[str, FieldInfo]] = {
    "`hooks.SkipCache`": CacheSettings.model_fields,
    "`hooks.AuditLog`": AuditSettings.model_fields,
}


def row(name: str, field: FieldInfo, reader: str = "") -> str:
    reader = reader or ("backend, worker" if name in ProducerSettings.model_fields else "worker")
    description = (field.description or "").replace("|", "\\|")
    return f"| `{variable(name, field)}` | {shown_default(field.default)} | {reader} | {description} |"


def test_the_settings_table_is_what_the_classes_read() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    written = [line for line in page.splitlines() if line.startswith("| `")]
    rows = [row(name, field) for name, field in WorkerSettings.model_fields.items()]
    for hook, settings in SETTINGS_OF_HOOKS.items():
        rows += [row(name, field, hook) for name, field in settings.items() if name not in WorkerSettings.model_fields]
    assert written == rows


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in requirements}


def test_every_dependency_has_its_row_and_no_row_is_left_over() -> None:
    extras = PROJECT["optional-dependencies"].values()
    wanted = names_of([*PROJECT["dependencies"], *(name for extra in extras for name in extra)])
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    written = set(re.findall(r"^\| ([a-zA-Z0-9_-]+) \| ", page, flags=re.MULTILINE)) - {"package"}
    assert written == wanted - {PROJECT["name"]}


def test_every_dependency_is_pinned_for_the_tests() -> None:
    extras = PROJECT["optional-dependencies"].values()
    wanted = names_of([*PROJECT["dependencies"], *(name for extra in extras for name in extra)])
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([a-z0-9-]+)==", pins, flags=re.MULTILINE))
    assert {name.lower().replace("_", "-") for name in wanted - {PROJECT["name"]}} <= pinned


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    dead = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:laya|producer|worker|hooks|tests|docs|deploy|examples)/[\w./-]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
