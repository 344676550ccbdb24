"""docker-compose.yml keeps its promises: who evicts, who persists, who needs a password, who is watched.

No container engine is needed; where one is installed, its own reading of the file is checked too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from hooks.cache_settings import CacheSettings
from producer.checkpoints import queue_of
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


def test_ports_are_published_to_this_machine_alone() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_every_setting_that_is_passed_exists() -> None:
    passed = {name for service in SERVICES.values() for name in service.get("environment", ())}
    assert {name for name in passed if name.startswith("LAYA_")} <= known_settings()


def known_settings() -> set[str]:
    """Every variable that workers and their hooks read."""
    own = {f"LAYA_{name.upper()}" for name in WorkerSettings.model_fields}
    return own | {f"LAYA_{name.upper()}" for name in CacheSettings.model_fields}


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_no_rights_and_a_root_that_cannot_be_written(service: str) -> None:
    one = SERVICES[service]
    assert one["read_only"] is True
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]


def test_workers_run_on_the_cpu_or_on_a_gpu_and_are_the_same_otherwise() -> None:
    cpu, gpu = dict(SERVICES["worker-cpu"]), dict(SERVICES["worker-gpu"])
    assert (cpu.pop("profiles"), gpu.pop("profiles")) == (["cpu"], ["gpu"])
    (device,) = gpu.pop("deploy")["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert cpu["environment"].pop("LAYA_DEVICE") == "cpu"
    assert cpu == gpu


def test_a_worker_is_process_1_nowhere() -> None:
    """Process 1 ignores signals that it does not listen to yet."""
    assert all(SERVICES[name]["init"] is True for name in ("worker-cpu", "worker-gpu"))
    (deployment,) = [one for one in KUBERNETES if one["kind"] == "Deployment"]
    assert deployment["spec"]["template"]["spec"]["shareProcessNamespace"] is True


def test_a_worker_has_time_to_finish_before_it_is_killed() -> None:
    seconds = int(SERVICES["worker-cpu"]["stop_grace_period"].removesuffix("s"))
    assert 0 < seconds < WorkerSettings.model_fields["visibility_timeout"].default


DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
TARGETS = dict(re.findall(r"^FROM run AS (\w+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, flags=re.MULTILINE | re.DOTALL))


def test_each_role_has_an_image_with_a_health_check_and_a_command_that_gets_signals() -> None:
    assert set(TARGETS) == {"worker", "monitor", "producer"}
    for name, text in TARGETS.items():
        assert "HEALTHCHECK" in text, name
        assert re.search(r"^CMD \[", text, flags=re.MULTILINE), f"{name}: a shell would take the signals"
    assert "REMAP_SIGTERM" not in DOCKERFILE
    assert "\nUSER 10001\n" in DOCKERFILE


def test_images_are_built_from_files_that_exist_and_are_sent() -> None:
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    names = [name for line in lines for name in line.split()]
    assert names
    assert [name for name in names if not (ROOT / name).exists() or f"!{name}" not in ignored] == []


@pytest.mark.parametrize("service", [name for name, one in SERVICES.items() if "build" in one])
def test_a_service_runs_what_its_image_runs(service: str) -> None:
    text = TARGETS[SERVICES[service]["build"]["target"]]
    (command,) = re.findall(r"^CMD (\[.+\])$", text, flags=re.MULTILINE)
    assert json.loads(command) == SERVICES[service]["command"]


def test_the_linter_of_dockerfiles_finds_nothing() -> None:
    run = subprocess.run(["hadolint", "deploy/Dockerfile"], cwd=ROOT, env=with_tools(), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_compose_s_own_schema_accepts_the_file() -> None:
    command = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"]
    run = subprocess.run(command, cwd=ROOT, env=with_tools(), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_kubernetes_own_schemas_accept_the_example() -> None:
    command = ["kubernetes-validate", "--strict", "deploy/kubernetes.yaml"]
    run = subprocess.run(command, cwd=ROOT, env=with_tools(), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def with_tools() -> dict[str, str]:
    """The environment, with the commands of this interpreter's packages found first."""
    return os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}


KUBERNETES: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text(encoding="utf-8"))
)


def test_the_kubernetes_example_scales_on_the_queue_of_each_checkpoint_that_it_serves() -> None:
    kinds = {one["kind"]: one for one in KUBERNETES}
    names = kinds["ConfigMap"]["data"]["LAYA_CHECKPOINTS"].split(",")
    lists = [trigger["metadata"]["listName"] for trigger in kinds["ScaledObject"]["spec"]["triggers"]]
    assert lists == [queue_of(name) for name in names]
    passed = kinds["ConfigMap"]["data"].keys() | kinds["Secret"]["stringData"].keys()
    assert passed <= known_settings()


def test_the_kubernetes_example_probes_whether_messages_are_taken() -> None:
    (deployment,) = [one for one in KUBERNETES if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"] == ["laya-workers", "health"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert deployment["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


@pytest.fixture(scope="module")
def exported() -> set[str]:
    """Names of all metrics that a worker can serve, as Prometheus stores them."""
    text = (ROOT / "hooks" / "metrics.py").read_text(encoding="utf-8")
    text += (ROOT / "worker" / "metrics.py").read_text(encoding="utf-8")
    kinds = r'(Counter|Histogram|Gauge|_gauge|CounterMetricFamily|GaugeMetricFamily)\(\s*"(laya_\w+)"'
    ends = {"Counter": ["_total"], "CounterMetricFamily": ["_total"], "Histogram": ["_bucket", "_sum", "_count"]}
    return {name + end for kind, name in re.findall(kinds, text) for end in ends.get(kind, [""])}


@pytest.mark.parametrize("file", ["alerts.yml", "grafana-dashboard.json"])
def test_only_metrics_that_exist_are_asked_for(file: str, exported: set[str]) -> None:
    text = (ROOT / "deploy" / file).read_text(encoding="utf-8")
    asked = set(re.findall(r"\b(laya_[a-z_]+)", text))
    assert len(asked) > 5
    assert asked - exported == set()


def test_the_page_on_monitoring_lists_every_metric_and_no_other(exported: set[str]) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(laya_\w+)` \|", page, flags=re.MULTILINE))
    histograms = {name.removesuffix("_bucket") for name in exported if name.endswith("_bucket")}
    parts = {name + end for name in histograms for end in ("_bucket", "_sum", "_count")}
    assert listed == (exported - parts) | histograms


def test_every_alert_says_what_to_do_first_and_how_urgent_it_is() -> None:
    groups = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    for rule in rules:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"]


def test_prometheus_scrapes_the_port_that_workers_open() -> None:
    scrape = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"][0]
    (found,) = scrape["dns_sd_configs"]
    assert set(found["names"]) == {name for name in SERVICES if name.startswith("worker-")}
    assert str(found["port"]) == SERVICES["worker-cpu"]["environment"]["LAYA_METRICS_PORT"]


@pytest.mark.skipif(not shutil.which("promtool"), reason="runs where Prometheus is installed: it brings promtool")
@pytest.mark.parametrize("command", [["config", "deploy/prometheus.yml"], ["rules", "deploy/alerts.yml"]])
def test_prometheus_itself_accepts_its_files(command: list[str]) -> None:
    run = subprocess.run(["promtool", "check", *command], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


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
