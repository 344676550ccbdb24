"""The demo as a person runs it: it answers everything, says what happened, and leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from tests.integration.commandline import TINY, CommandLine
from tests.waiting import wait_until
from worker.tickets import TICKETS

START_SECONDS = 90.0
RUN_SECONDS = 150.0


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., CommandLine]]:
    """Starts demos with the tiny checkpoints."""
    started: list[CommandLine] = []

    def start(**environment: str) -> CommandLine:
        started.append(CommandLine(tmp_path, "demo", "--checkpoints", TINY, **environment))
        return started[-1]

    yield start
    for command in started:
        command.clean_up()


def answered(command: CommandLine) -> int:
    """How many results the demo's own server holds."""
    for process in command.processes("valkey"):
        line = process.cmdline()
        if "--port" in line:
            client = redis.Redis(port=int(line[line.index("--port") + 1]), socket_timeout=2)
            try:
                return sum(1 for _ in client.scan_iter("celery-task-meta-*", count=1000))
            except redis.RedisError:
                return 0
            finally:
                client.close()
    return 0


def workers(command: CommandLine) -> list[psutil.Process]:
    return command.processes("worker.leash")


def wait_for_start(command: CommandLine) -> None:
    wait_until(lambda: len(workers(command)) == 2, START_SECONDS, "the start of two workers")


def wait_for_answers(command: CommandLine) -> None:
    """Until some tickets are answered; the demo forgets each result as it reads it, so one seen is enough."""
    wait_until(lambda: answered(command) > 0 or command.process.poll() is not None, START_SECONDS, "the first answer")
    assert command.process.poll() is None, command.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A demo that ran to its end, on a machine that is configured for something else."""
    command = CommandLine(
        tmp_path_factory.mktemp("finished"),
        *("demo", "--checkpoints", TINY),
        LAYA_BROKER_URL="redis://192.0.2.1:1/0",
        LAYA_HOOKS="no.such.Hook",
        LAYA_PRELOAD="typed-decisions",
    )
    command.ends(RUN_SECONDS)
    yield command
    command.clean_up()


def test_it_uses_nothing_that_the_environment_configures_for_a_deployment(finished: CommandLine) -> None:
    assert finished.process.returncode == 0, finished.output


def test_it_shows_every_ticket_with_its_answers(finished: CommandLine) -> None:
    row = r"^[a-z]{2} +(english|multilingual) +(one|two) +\w+ +[●○]+ \d\.\d +(yes|no) +\d+ % +\d+ ms +\S"
    rows = [line for line in finished.output.splitlines() if re.match(row, line)]
    assert len(rows) == len(TICKETS), finished.output


def test_its_summary_counts_each_workers_answers_and_loads(finished: CommandLine) -> None:
    lines = re.findall(r"^(one|two) +(\d+) +(\d+) ", finished.output, re.MULTILINE)
    table = {name: (int(answers), int(loads)) for name, answers, loads in lines}
    assert set(table) == {"one", "two"}
    assert sum(answers for answers, _ in table.values()) == len(TICKETS)
    assert all(loads >= 1 for _, loads in table.values())


def test_its_summary_says_how_fast_it_was(finished: CommandLine) -> None:
    said = rf"{len(TICKETS)} tickets in \d+ languages in [\d.]+ s: \d+ requests a second"
    assert re.search(said, finished.output)


def test_it_leaves_nothing_running(finished: CommandLine) -> None:
    finished.leaves_nothing()


def test_the_small_checkpoints_send_the_tickets_to_the_right_teams(tmp_path: Path) -> None:
    command = CommandLine(tmp_path, "demo")
    try:
        assert command.ends(RUN_SECONDS) == 0, command.output
        right, asked = map(int, re.findall(r"^(\d+) of (\d+) teams are those", command.output, re.MULTILINE)[0])
        assert asked == len(TICKETS)
        assert right / asked >= 0.9
    finally:
        command.clean_up()


@pytest.mark.parametrize(
    ("number", "stage"),
    [
        (signal.SIGINT, wait_for_start),
        (signal.SIGTERM, wait_for_start),
        (signal.SIGHUP, wait_for_start),
        (signal.SIGINT, wait_for_answers),  # one stands for all: they have one handler
    ],
)
def test_stopped_by_a_signal_it_ends_well_and_leaves_nothing_running(
    demo: Callable[..., CommandLine], number: signal.Signals, stage: Callable[[CommandLine], None]
) -> None:
    command = demo()
    stage(command)
    os.killpg(command.process.pid, number)  # as a terminal does: to the whole group
    assert command.ends(40) == 0, command.output
    assert f"{number.name}: stopping" in command.output
    command.leaves_nothing()


def test_a_second_signal_does_not_wait(demo: Callable[..., CommandLine]) -> None:
    command = demo()
    wait_for_start(command)
    stopped = workers(command)
    for worker in stopped:
        worker.suspend()  # it cannot react to a SIGTERM now
    os.killpg(command.process.pid, signal.SIGINT)
    wait_until(lambda: "SIGINT: stopping" in command.output, 20, "the word on the first signal")
    os.killpg(command.process.pid, signal.SIGINT)
    command.ends(10)
    command.leaves_nothing(5)


def test_a_worker_killed_in_the_middle_is_replaced_and_every_ticket_answered(demo: Callable[..., CommandLine]) -> None:
    command = demo()
    wait_for_answers(command)
    command.processes("two@")[0].kill()
    assert command.ends(RUN_SECONDS) == 0, command.output
    assert "worker two was killed (SIGKILL): starting it again" in command.output
    assert f"{len(TICKETS)} tickets in" in command.output
    command.leaves_nothing()


def test_killed_itself_it_takes_server_and_workers_along(demo: Callable[..., CommandLine]) -> None:
    command = demo()
    wait_for_answers(command)
    command.process.kill()
    command.leaves_nothing(20)


def test_a_checkpoint_that_cannot_be_loaded_is_one_clear_error(tmp_path: Path) -> None:
    command = CommandLine(tmp_path, "demo", "--checkpoints", f"english={tmp_path}/nowhere")
    try:
        assert command.ends(RUN_SECONDS) == 4
        assert "Traceback" not in command.output.partition("error: ")[0]
        assert re.search(r"error: worker (one|two) ended with exit code \d+ at its start", command.output)
        command.leaves_nothing()
    finally:
        command.clean_up()
