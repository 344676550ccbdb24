"""Every block of code in the README and the docs: Python is run against a real worker, the rest is checked."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
import yaml
from celery.worker.control import Panel
from typer.core import TyperGroup
from typer.main import get_command

from hooks.audit import AuditSettings
from hooks.cache_settings import CacheSettings
from laya.checkpoint import read_config
from laya.embedding import read_config as read_embedding_config
from tests.integration.commandline import ROOT, TINY, CommandLine, laya_workers
from tests.waiting import wait_until
from worker import control, inspection, watchdog_step  # noqa: F401 - Celery's command line knows their commands
from worker.cli.commands import app as command_line
from worker.server import free_port
from worker.settings import WorkerSettings
from worker.tickets import TICKETS

PAGES = [page for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]) if "```" in page.read_text("utf-8")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SETTINGS = {
    f"LAYA_{name.upper()}"
    for settings in (WorkerSettings, CacheSettings, AuditSettings)
    for name in settings.model_fields
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(page, text[: match.start()].count("\n") + 1, match[1], match[2]) for match in fences]


BLOCKS = [block for page in PAGES for block in blocks(page)]

# Pages whose Python, diagrams and other blocks have tests of their own; their commands are checked here all the same.
ELSEWHERE = {
    "hooks.md": "tests/unit/test_lifecycle_docs.py",
    "lifecycle.md": "tests/unit/test_lifecycle_docs.py",
    "lebenszyklus.md": "tests/unit/test_lifecycle_docs.py",
    "transport.md": "tests/integration/test_transport_page.py",
    "security.md": "tests/integration/test_security_page.py",
}


def of(language: str) -> list[Block]:
    return [
        block
        for block in BLOCKS
        if block.language == language and (language == "sh" or block.page.name not in ELSEWHERE)
    ]


@pytest.fixture(scope="module")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server and a worker, as `laya-workers up` starts them."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    command = CommandLine(
        tmp_path_factory.mktemp("up"), "up", "--no-flower", "--port", str(port), LAYA_CHECKPOINTS=TINY
    )
    try:
        wait_until(lambda: laya_workers("status", LAYA_BROKER_URL=url).returncode == 0, 90, "a worker's answer")
        yield url
    finally:
        command.clean_up()


def test_every_block_is_of_a_language_that_is_checked_here() -> None:
    languages = {block.language for block in BLOCKS if block.page.name not in ELSEWHERE}
    assert languages <= {"python", "sh", "mermaid", "text", "json"}


@pytest.mark.parametrize(("page", "tests"), ELSEWHERE.items())
def test_a_page_that_is_checked_elsewhere_is_named_there(page: str, tests: str) -> None:
    assert page in (ROOT / tests).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted({block.page for block in of("python")}), ids=lambda p: p.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, broker_url: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("\n".join(block.text for block in blocks(page) if block.language == "python"), encoding="utf-8")
    run = laya_workers(
        command=[sys.executable, "-W", "error", str(script)], LAYA_BROKER_URL=broker_url, PYTHONPATH=str(ROOT)
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip()


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, each as words, without comments and without the variables before them."""
    found = []
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            name = words.pop(0).partition("=")[0]
            assert name in SETTINGS or not name.startswith("LAYA_"), f"{block}: no setting is called {name}"
        if words:
            found.append(words)
    return found


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_every_command_of_a_page_exists(block: Block) -> None:
    for program, *arguments in commands(block):
        assert program in CHECKS, f"{block}: nothing here checks {program}"
        CHECKS[program](arguments)


def make_targets_exist(arguments: list[str]) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(arguments) <= set(targets)


def our_command_line_takes(arguments: list[str]) -> None:
    """Parse them as the command would, without running it."""
    command = get_command(command_line)
    if arguments == ["--help"]:
        return
    name, *rest = arguments
    while isinstance(command, TyperGroup) and name in command.commands:
        command = command.commands[name]
        if isinstance(command, TyperGroup) and rest:
            name, *rest = rest
    assert command.name == name
    command.make_context(name, list(rest))


def celery_finds_the_app(arguments: list[str]) -> None:
    flag, app, command, *rest = arguments
    assert (flag, app) == ("-A", "worker")
    if command in {"inspect", "control"}:
        assert Panel.meta[rest[0]].type == command
        assert len(rest) - 1 <= len(Panel.meta[rest[0]].args or ())
    else:
        assert command in {"worker", "flower"}
        assert rest == []


def pip_extras_exist(arguments: list[str]) -> None:
    extras = re.findall(r"\[(.*?)\]", " ".join(arguments))
    assert {name for extra in extras for name in extra.split(",")} <= set(PROJECT["optional-dependencies"])


def the_environment_is_the_makefiles(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    venv = re.findall(r"^VENV \?= (\S+)$", makefile, flags=re.MULTILINE)
    assert arguments == [f"{venv[0]}/bin/activate"]


def python_finds_the_program(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        assert find_spec(arguments[1]), arguments
    else:
        assert (ROOT / arguments[0]).is_file(), arguments


def redis_has_the_command(arguments: list[str]) -> None:
    assert hasattr(redis.Redis, arguments[0].lower()), arguments


def the_app_can_be_imported(arguments: list[str]) -> None:
    module, _, name = arguments[0].partition(":")
    source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    assert re.search(rf"^{name} = ", source, flags=re.MULTILINE)


def docker_has_the_profile_or_the_image(arguments: list[str]) -> None:
    if arguments[0] == "compose":
        services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
        profiles = {profile for service in services.values() for profile in service.get("profiles", ())}
        _, option, profile, *rest = arguments
        assert (option, profile in profiles) == ("--profile", True)
        assert rest == ["up", "--build"]
    else:
        command, flag, file, target, name, *_ = arguments
        assert (command, flag, target) == ("build", "-f", "--target")
        assert f" AS {name}\n" in (ROOT / file).read_text(encoding="utf-8")


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "make": make_targets_exist,
    "laya-workers": our_command_line_takes,
    "celery": celery_finds_the_app,
    "pip": pip_extras_exist,
    "python": python_finds_the_program,
    "redis-cli": redis_has_the_command,
    "docker": docker_has_the_profile_or_the_image,
    "uvicorn": the_app_can_be_imported,
    ".venv/bin/uvicorn": the_app_can_be_imported,
    ".": the_environment_is_the_makefiles,
}


@pytest.mark.parametrize("block", of("mermaid"), ids=str)
def test_a_diagram_names_every_participant_that_it_uses(block: Block) -> None:
    if block.text.startswith("flowchart "):
        known = set(re.findall(r"^ *(?:subgraph )?(\w+)\[", block.text, flags=re.MULTILINE))
        used = {name for pair in re.findall(r"^ *(\w+) --> (\w+)$", block.text, flags=re.MULTILINE) for name in pair}
        assert used
        assert used <= known
        return
    assert block.text.startswith("sequenceDiagram\n")
    known = set(re.findall(r"participant (\w+)", block.text))
    used = {name for pair in re.findall(r"^ *(\w+)-+>>\+?-?(\w+):", block.text, flags=re.MULTILINE) for name in pair}
    assert used == known


@pytest.mark.parametrize("block", of("text"), ids=str)
def test_a_picture_of_the_demo_shows_its_tickets(block: Block) -> None:
    rows = [line for line in block.text.splitlines() if re.match(r"[a-z]{2} ", line)]
    assert rows
    for row in rows:
        shown = re.split(r" ms  ", row)[1].rstrip("…")
        assert any(ticket.language == row[:2] and ticket.text.startswith(shown) for ticket in TICKETS), row


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_a_configuration_of_an_embedding_checkpoint_can_be_read(block: Block, tmp_path: Path) -> None:
    (tmp_path / "rl_agent_config.json").write_text(block.text, encoding="utf-8")
    config = read_config(tmp_path)
    assert config["architecture"] == "embedding"
    read_embedding_config(tmp_path, config)
    first_cells = re.findall(r"^\| (`\w+`.*?) \|", block.page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    explained = set(re.findall(r"\w+", " ".join(first_cells)))
    assert json.loads(block.text).keys() - {"architecture"} <= explained
