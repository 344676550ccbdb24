"""The clock of one of two workers is set by an hour while they work: nobody's request is the worse for it."""

from __future__ import annotations

from collections.abc import Iterator
from socket import gethostname
from types import SimpleNamespace

import pytest
from rich.console import Console

from laya.simulated import write_checkpoint
from tests.faults.clock_hooks import REAL, is_set, set_clock
from tests.faults.deployment import Deployment, answers, deployed
from tests.waiting import wait_until
from worker.cli import doctor
from worker.cli.overview import view
from worker.dead import DeadLetters
from worker.overview import WorkerView, overview, workers_of
from worker.settings import WorkerSettings

HOUR = 3600.0
THREADS = 16
AT_WORK = 24
AFTERWARDS = 40  # more than one worker can take at once
EXPIRES_S = 60
LOAD_S = 2.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    home = tmp_path_factory.mktemp("clock")
    english = write_checkpoint(home / "english", pass_ms=1.0)
    slow = write_checkpoint(home / "slow", load_s=LOAD_S)
    with deployed(
        home,
        workers=2,
        threads=THREADS,
        LAYA_CHECKPOINTS=f"english={english},slow={slow}",
        LAYA_MAX_LOADED="2",
        LAYA_LOAD_SECONDS="600",
        LAYA_HOOKS="tests.faults.deadly_hooks.Deadly,tests.faults.clock_hooks.Clock",
    ) as made:
        yield made


def of_first(run: Deployment) -> WorkerView:
    """What the worker says whose clock is set."""
    (found,) = workers_of(run.backend.app, 5, [f"worker0@{gethostname()}"])
    assert found.holdings["pid"] == run.workers[0].pid
    return found


def has_both(run: Deployment) -> bool:
    """Whether both workers have told within the last seconds that they live, and answer."""
    return len({worker.holdings["pid"] for worker in overview(run.backend.app, 2).workers}) == 2


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, 0.0], ids=["forward", "backward", "right"])
def test_every_request_is_answered_once_across_a_jump(run: Deployment, ahead: float) -> None:
    node, pid = of_first(run).node, run.workers[0].pid
    at_work = {f"nap 2; {ahead} {place}": None for place in range(AT_WORK)}
    results = {state: run.ask(state, expires=EXPIRES_S) for state in at_work}
    run.backend.app.control.broadcast("load", arguments={"name": "slow"}, destination=[node])
    wait_until(lambda: "slow" in of_first(run).holdings["loading"], what="the load")
    wait_until(lambda: at_work.keys() & run.lines("begin"), what="requests at work")

    set_clock(run.journal, pid, ahead)
    wait_until(lambda: is_set(run.journal, pid, ahead), what="the clock")
    came = answers(results, 20)
    afterwards = [f"nap 0.5; {ahead} then {place}" for place in range(AFTERWARDS)]
    results |= {state: run.ask(state, expires=EXPIRES_S) for state in afterwards}
    came |= answers(results, 20)
    assert {state: answer for state, answer in came.items() if "answers" not in answer} == {}
    begun = run.lines("begin")
    assert run.begun_by(pid).intersection(at_work)
    assert run.begun_by(pid).intersection(afterwards)
    assert [state for state in results if begun.count(state) != 1] == []
    wait_until(lambda: "slow" in of_first(run).holdings["resident"], what="the checkpoint")
    wait_until(run.settled, what="acknowledgements")
    assert has_both(run)
    assert "hangs" not in run.log()  # a load that was under way seems an hour long by the clock
    assert (run.deaths, DeadLetters(run.backend.app).letters()) == (0, [])

    told = of_first(run).holdings["clock_ahead"]
    assert told == pytest.approx(ahead, abs=1.0)
    run.backend.app.control.broadcast("unload", arguments={"name": "slow"}, destination=[node])
    wait_until(lambda: "slow" not in of_first(run).holdings["resident"], what="the room")


def test_a_clock_that_is_wrong_is_told_in_the_log_and_by_status(run: Deployment) -> None:
    pid, node = run.workers[0].pid, of_first(run).node
    said = "this machine's clock is 3600 s ahead of the broker's"
    before = run.workers[0].text().count(said)
    set_clock(run.journal, pid, HOUR)
    wait_until(lambda: is_set(run.journal, pid, HOUR), what="the clock")
    wait_until(lambda: run.workers[0].text().count(said) > before, what="the log")
    assert "this machine's clock" not in run.workers[1].text()
    console = Console(width=120)
    with console.capture() as captured:
        console.print(view(overview(run.backend.app, 5), 120))
    assert f"{node}: its clock is 60 min ahead of the broker's" in captured.get()


@pytest.mark.parametrize(("ahead", "said"), [(HOUR, "3600 s ahead of"), (-HOUR, "3600 s behind")])
def test_doctor_says_that_this_machine_s_clock_is_wrong(
    run: Deployment, monkeypatch: pytest.MonkeyPatch, ahead: float, said: str
) -> None:
    settings = WorkerSettings(broker_url=run.server.url)
    assert "clock" not in {finding.subject for finding in doctor.server(settings)}
    monkeypatch.setattr("worker.cli.doctor.time", SimpleNamespace(time=lambda: REAL() + ahead))
    (finding,) = [finding for finding in doctor.server(settings) if finding.subject == "clock"]
    assert f"this machine's clock is {said} the broker's" in finding.detail


def test_a_request_whose_time_is_up_by_both_clocks_is_not_begun(run: Deployment) -> None:
    late = answers({f"late {place}": run.ask(f"late {place}", expires=-5) for place in range(8)}, 20)
    assert {type(error).__name__ for error in late.values()} == {"DeadlineExceeded"}
    assert not any(state.startswith("late") for state in run.lines("begin"))
