"""docker-compose.yml keeps its promises: who evicts, who persists, who needs a password, who is watched.

No container engine is needed; where one is installed, its own reading of the file is checked too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from worker.settings import WorkerSettings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def option(service: str, name: str) -> str:
    command = SERVICES[service]["command"]
    return str(command[command.index(name) + 1])


def test_the_broker_never_evicts_and_persists() -> None:
    assert (option("broker", "--maxmemory-policy"), option("broker", "--appendonly")) == ("noeviction", "yes")
    assert SERVICES["broker"]["volumes"] == ["broker:/data"]


def test_the_cache_is_bounded_and_evicts() -> None:
    assert option("cache", "--maxmemory-policy") == "allkeys-lfu"
    assert re.fullmatch(r"\d+mb", option("cache", "--maxmemory"))


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_watched_and_restarted(service: str) -> None:
    assert SERVICES[service]["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}
    assert SERVICES[service]["restart"] == "unless-stopped"


def test_flower_does_not_start_without_a_password() -> None:
    login = SERVICES["flower"]["environment"]["FLOWER_BASIC_AUTH"]
    assert ":${FLOWER_PASSWORD:?" in login


@pytest.mark.parametrize("service", SERVICES)
def test_ports_are_published_to_this_machine_alone(service: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[service].get("ports", ()))


def test_every_setting_that_is_passed_exists() -> None:
    known = {f"LAYA_{name.upper()}" for name in WorkerSettings.model_fields}
    passed = {name for service in SERVICES.values() for name in service.get("environment", ())}
    assert {name for name in passed if name.startswith("LAYA_")} <= known


@pytest.mark.parametrize("service", [name for name, one in SERVICES.items() if one["command"][0] == "celery"])
def test_celery_finds_the_app_that_a_service_names(service: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", *SERVICES[service]["command"][:3], "report"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr


def test_the_image_is_built_from_files_that_exist_and_does_not_run_as_root() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    sources = [
        name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, flags=re.MULTILINE) for name in line.split()
    ]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert sources
    assert [name for name in sources if not (ROOT / name).exists() or f"!{name}" not in ignored] == []
    assert "\nUSER laya\n" in text.rpartition("FROM ")[2]


def compose() -> list[str]:
    """The command of an installed compose, its plugin or its own; empty without one."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "version"], capture_output=True, timeout=60).returncode == 0
        ):
            return command
    return []


def read_by_compose(**passwords: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "FLOWER_PASSWORD"} | passwords
    return subprocess.run(
        [*compose(), "config", "--quiet"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


needs_compose = pytest.mark.skipif(not compose(), reason="runs where docker's compose is installed")


@needs_compose
def test_compose_itself_accepts_the_file() -> None:
    run = read_by_compose(FLOWER_PASSWORD="x")
    assert run.returncode == 0, run.stderr


@needs_compose
def test_compose_itself_refuses_a_dashboard_without_a_password() -> None:
    run = read_by_compose()
    assert run.returncode != 0
    assert "set FLOWER_PASSWORD" in run.stderr
