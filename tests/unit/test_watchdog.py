"""When a worker is taken for hung, and what a probe makes of a pulse: decisions without a worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from worker.hanging import ANSWER_AFTER_S, OVERDUE_S, AtWork, Limits, Verdict, judge
from worker.health import (
    CLOCK_S,
    DEAF_S,
    STALE_S,
    STARVED_S,
    Pulse,
    PulseFile,
    Sight,
    clock_note,
    problems,
    read_pulses,
    starved,
)

LIMITS = Limits(request_s=300, load_s=1800)
WELL = Pulse(at=1000.0, pid=1, node="w@host", ready=True, room=4, queues=("laya.english",))


def verdict(*at_work: AtWork, loading: float = 0, computing: float = 0, turned: float = 0) -> Verdict:
    return judge(at_work, loading, computing, turned, LIMITS)


def test_what_is_worked_on_within_its_limits_is_no_hang() -> None:
    at_work = (AtWork("a", "t", 299), AtWork("b", "t", 5, overdue=-10), AtWork("c", "t", 60, ANSWER_AFTER_S))
    assert verdict(*at_work, loading=1799, computing=299, turned=299) == Verdict()


def test_a_request_that_takes_too_long_hangs() -> None:
    found = verdict(AtWork("a", "t", 301), AtWork("b", "t", 1))
    assert found.hanging == ("a",)
    assert found.reasons == ("request a has been worked on for 301 s",)


def test_a_request_is_answered_when_its_time_is_up_and_hangs_some_seconds_later() -> None:
    assert verdict(AtWork("a", "t", 20, ANSWER_AFTER_S + 1)) == Verdict(late=("a",))
    late = verdict(AtWork("a", "t", 20, OVERDUE_S + 1))
    assert (late.late, late.hanging) == (("a",), ("a",))


def test_a_request_that_came_too_late_has_its_seconds_like_any_other() -> None:
    assert not verdict(AtWork("a", "t", 0.5, overdue=3600)).hanging


def test_a_load_is_no_hang_of_the_requests_that_wait_for_it() -> None:
    assert not verdict(AtWork("a", "t", 0, OVERDUE_S + 100), loading=600).hanging


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"loading": 1801.0}, "a checkpoint has been loading for 1801 s"),
        ({"computing": 301.0}, "a forward pass has gone on for 301 s"),
        ({"turned": 301.0}, "the event loop has not come by for 301 s"),
    ],
)
def test_a_load_a_pass_and_the_loop_have_their_limits(facts: dict[str, float], said: str) -> None:
    assert verdict(**facts).reasons == (said,)


@pytest.mark.parametrize(("ahead", "said"), [(61.0, "61 s ahead of"), (-61.0, "61 s behind")])
def test_a_clock_that_differs_from_the_broker_s_is_told(ahead: float, said: str) -> None:
    note = clock_note(ahead)
    assert note is not None
    assert said in note


@pytest.mark.parametrize("ahead", [0.0, CLOCK_S - 0.1, 0.1 - CLOCK_S])
def test_clocks_that_agree_are_no_matter(ahead: float) -> None:
    assert clock_note(ahead) is None


# --- what a probe makes of it ---


def test_a_worker_that_turns_and_hears_is_well() -> None:
    assert problems(WELL, WELL.at + 1) == []
    assert problems(replace(WELL, turned=STALE_S - 1, answered=DEAF_S - 1), WELL.at + STALE_S - 1) == []


@pytest.mark.parametrize(
    ("pulse", "said"),
    [
        (replace(WELL, at=WELL.at - STALE_S - 1), "no pulse for 11 s"),
        (replace(WELL, at=WELL.at + 3600), "of 3600 s from now"),
        (replace(WELL, turned=STALE_S + 1), "event loop has not come by for 11 s"),
        (replace(WELL, answered=DEAF_S + 1), "not heard from the broker for 16 s"),
        (replace(WELL, hung=("request x has been worked on for 301 s",)), "request x"),
    ],
)
def test_a_worker_that_stands_still_is_not(pulse: Pulse, said: str) -> None:
    (problem,) = problems(pulse, WELL.at)
    assert said in problem


@pytest.mark.parametrize("pulse", [replace(WELL, room=0, answered=99, turned=99), replace(WELL, ready=False)])
def test_a_worker_that_is_full_or_has_no_broker_is_well(pulse: Pulse) -> None:
    assert problems(pulse, WELL.at) == []


def test_messages_that_nobody_takes_starve_and_those_that_others_take_do_not() -> None:
    now = WELL.at
    seen = Sight().updated({"laya.english": "tag1"}, now - STARVED_S - 1)
    (problem,) = starved(WELL, seen.updated({"laya.english": "tag1"}, now), now)
    assert "the oldest of laya.english for 21 s" in problem
    assert starved(WELL, seen.updated({"laya.english": "tag2"}, now), now) == []  # somebody took the first
    assert starved(WELL, seen.updated({}, now), now) == []  # the queue is empty
    assert starved(replace(WELL, taken=5.0), seen, now) == []  # this worker takes, in its order
    assert starved(replace(WELL, queues=("laya.other",)), seen, now) == []
    assert starved(replace(WELL, room=0), seen, now) == []


# --- the files ---


def test_a_pulse_is_read_while_its_worker_lives_and_gone_with_it(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from worker.health import Pulse, PulseFile\n"
        "file = PulseFile(pathlib.Path(sys.argv[1])); file.write(Pulse(1.0, 7, 'w@host', queues=('q',), hung=('x',)))\n"
        "print('written', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        assert read_pulses(tmp_path) == [Pulse(1.0, 7, "w@host", queues=("q",), hung=("x",))]
        worker.kill()
    assert read_pulses(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_worker_without_a_pulse_yet_is_there_for_some_seconds(tmp_path: Path) -> None:
    file = PulseFile(tmp_path)
    (pulse,) = read_pulses(tmp_path)
    assert pulse.pid == os.getpid()
    assert problems(pulse, time.time()) == []
    assert problems(pulse, time.time() + STALE_S + 1)
    file.close()
    assert read_pulses(tmp_path) == []


def test_the_probe_is_quick_to_import() -> None:
    code = (
        "import sys, worker.cli.health as h; h.main(['--node', 'nobody']);"
        "print(sorted({'torch', 'celery', 'pydantic', 'typer', 'rich'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert run.stdout.strip() == "[]"
