"""Rows of many calls in shared passes: who waits for what, and what a failing pass means for each."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest

from laya.batching import Batching, DeadlinePassed, PassReport, Pending, answer_by
from laya.questions import parse_questions
from laya.rows import Row, RowScores
from laya.simulated import SimulatedKind

DEADLINE_S = 20
QUESTIONS = {"team": {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "support", "sales"]}}


class GatedKind(SimulatedKind):
    """A simulated device whose passes wait for the test, keep what they were given, and may fail."""

    def __init__(self, fails: Callable[[Sequence[Row]], Exception | None] = lambda rows: None) -> None:
        super().__init__(pass_ms=0, row_ms=0, device=f"gated-{id(self)}")
        self.fails = fails
        self.passes: list[list[Row]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def launch(self, rows: Sequence[Row]) -> Callable[[], list[RowScores]]:
        collect = super().launch(rows)
        self.passes.append(list(rows))

        def scores() -> list[RowScores]:
            self.entered.set()
            assert self.gate.wait(DEADLINE_S)
            error = self.fails(rows)
            if error is not None:
                raise error
            return collect()

        return scores


def rows_of(kind: SimulatedKind, state: str, number: int = 1) -> list[Row]:
    (question,) = parse_questions(QUESTIONS)
    return [row for _ in range(number) for row in kind.encode(state, [question], 512, 192).rows]


@pytest.fixture
def reports() -> list[PassReport]:
    return []


@pytest.fixture
def batching(reports: list[PassReport]) -> Batching:
    return Batching(max_rows=32, observe=reports.append)


@pytest.fixture
def busy(batching: Batching) -> Iterator[tuple[GatedKind, Pending]]:
    """A device that is busy with one row until the gate opens, so that what comes next gathers."""
    kind = GatedKind()
    kind.gate.clear()
    first = batching.submit(kind, rows_of(kind, "first"))
    assert kind.entered.wait(DEADLINE_S)
    yield kind, first
    kind.gate.set()


def test_rows_that_gather_while_the_device_is_busy_share_the_next_pass(
    batching: Batching, busy: tuple[GatedKind, Pending]
) -> None:
    kind, first = busy
    calls = [batching.submit(kind, rows_of(kind, f"state {place}", 2)) for place in range(4)]
    kind.gate.set()
    first.result()
    scores = [call.result() for call in calls]
    assert [len(rows) for rows in kind.passes] == [1, 8]
    assert scores == [SimulatedKind.forward(kind, rows_of(kind, f"state {place}", 2)) for place in range(4)]


def test_how_long_a_pass_has_gone_on_is_known_while_it_does(
    batching: Batching, busy: tuple[GatedKind, Pending]
) -> None:
    kind, first = busy
    before = batching.computing_s
    time.sleep(0.05)
    assert batching.computing_s >= before + 0.05
    kind.gate.set()
    first.result()
    deadline = time.monotonic() + DEADLINE_S
    while batching.computing_s:
        assert time.monotonic() < deadline


def test_a_call_waits_for_its_own_rows_only(batching: Batching) -> None:
    kind = GatedKind()
    kind.gate.clear()
    slow = batching.submit(kind, rows_of(kind, "slow"))
    other = GatedKind()
    other.device = type(kind.device)("cpu")  # another device has another thread
    assert len(batching.submit(other, rows_of(other, "fast")).result()) == 1
    kind.gate.set()
    assert len(slow.result()) == 1


def test_two_checkpoints_of_one_device_take_turns_by_the_age_of_their_rows(
    batching: Batching, busy: tuple[GatedKind, Pending]
) -> None:
    kind, _ = busy
    other = GatedKind()
    order: list[str] = []
    kind.fails = lambda rows: order.append("kind")
    other.fails = lambda rows: order.append("other")
    calls = [batching.submit(one, rows_of(one, "state")) for one in (other, kind, other)]
    kind.gate.set()
    for call in calls:
        call.result()
    assert order == ["kind", "other", "kind"], "the first row, then the oldest waiting one with its like, then the rest"


def test_only_the_calls_of_failing_rows_fail(batching: Batching, busy: tuple[GatedKind, Pending]) -> None:
    kind, _ = busy
    bad = rows_of(kind, "bad")
    kind.fails = lambda rows: ZeroDivisionError("bad row") if bad[0] in rows else None
    good = [batching.submit(kind, rows_of(kind, f"good {place}")) for place in range(7)]
    failing = batching.submit(kind, bad)
    kind.gate.set()
    assert [len(call.result()) for call in good] == [1] * 7
    with pytest.raises(ZeroDivisionError, match="bad row"):
        failing.result()


def test_the_thread_of_a_device_lives_on_after_a_pass_that_failed(batching: Batching) -> None:
    kind = GatedKind(fails=lambda rows: ValueError("always"))
    with pytest.raises(ValueError, match="always"):
        batching.submit(kind, rows_of(kind, "one")).result()
    kind.fails = lambda rows: None
    assert len(batching.submit(kind, rows_of(kind, "two")).result()) == 1


def test_a_full_pass_is_launched_behind_the_one_under_way(batching: Batching, busy: tuple[GatedKind, Pending]) -> None:
    kind, first = busy
    calls = [batching.submit(kind, rows_of(kind, f"state {place}", 16)) for place in range(3)]
    deadline = time.monotonic() + DEADLINE_S
    while len(kind.passes) < 2:
        assert time.monotonic() < deadline, "the second pass waited for the first to end"
        time.sleep(0.001)
    kind.gate.set()
    assert [len(call.result()) for call in (first, *calls)] == [1, 16, 16, 16]
    assert [len(rows) for rows in kind.passes] == [1, 32, 16]


def test_a_pass_that_is_not_full_waits_for_a_free_device(batching: Batching, busy: tuple[GatedKind, Pending]) -> None:
    kind, first = busy
    calls = [batching.submit(kind, rows_of(kind, "same length")) for _ in range(31)]
    kind.gate.set()
    assert [len(call.result()) for call in (first, *calls)] == [1] * 32
    assert [len(rows) for rows in kind.passes] == [1, 31]


def test_a_pass_that_fails_behind_another_is_cut_when_the_other_has_ended(
    batching: Batching, busy: tuple[GatedKind, Pending]
) -> None:
    kind, first = busy
    bad = rows_of(kind, "bad")
    kind.fails = lambda rows: ZeroDivisionError("bad row") if bad[0] in rows else None
    good = [batching.submit(kind, rows_of(kind, f"good {place}")) for place in range(40)]
    failing = batching.submit(kind, bad)
    more = [batching.submit(kind, rows_of(kind, f"more {place}")) for place in range(40)]
    kind.gate.set()
    assert [len(call.result()) for call in (first, *good, *more)] == [1] * 81
    with pytest.raises(ZeroDivisionError, match="bad row"):
        failing.result()


def test_a_kind_that_answers_for_too_few_rows_fails_their_calls_and_hangs_nobody(batching: Batching) -> None:
    class Short(GatedKind):
        def launch(self, rows: Sequence[Row]) -> Callable[[], list[RowScores]]:
            collect = super().launch(rows)
            return lambda: collect()[:-1]

    kind = Short()
    with pytest.raises(ValueError, match="shorter"):
        batching.submit(kind, rows_of(kind, "one", 2)).result()


def run_out_of_memory(batching: Batching, kind: GatedKind) -> None:
    """16 rows that gathered, of which no more than four fit into memory together; all are answered."""
    kind.fails = lambda rows: RuntimeError("CUDA out of memory.") if len(rows) > 4 else None
    answer_together(batching, kind)
    kind.fails = lambda rows: None


def answer_together(batching: Batching, kind: GatedKind) -> None:
    """16 rows of one length that gathered behind another."""
    kind.gate.clear()
    kind.entered.clear()
    calls = [batching.submit(kind, rows_of(kind, "same length"))]
    assert kind.entered.wait(DEADLINE_S)
    calls += [batching.submit(kind, rows_of(kind, "same length")) for _ in range(16)]
    kind.gate.set()
    assert [len(call.result()) for call in calls] == [1] * 17


def test_a_pass_that_runs_out_of_memory_is_split_and_reported(batching: Batching, reports: list[PassReport]) -> None:
    run_out_of_memory(batching, GatedKind())
    assert [(report.outcome, report.rows) for report in reports if report.out_of_memory] == [
        ("split", 16),
        ("split", 8),
        ("split", 8),
    ]


def test_after_it_ran_out_of_memory_a_device_takes_smaller_passes(batching: Batching) -> None:
    kind = GatedKind()
    run_out_of_memory(batching, kind)
    kind.passes.clear()
    answer_together(batching, kind)
    assert [len(rows) for rows in kind.passes] == [1, 4, 4, 4, 4]


def test_passes_are_as_large_as_before_some_time_after_memory_ran_out(
    batching: Batching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("laya.forwarding.SMALLER_FOR_S", 0.0)
    kind = GatedKind()
    run_out_of_memory(batching, kind)
    kind.passes.clear()
    answer_together(batching, kind)
    assert [len(rows) for rows in kind.passes] == [1, 16]


def test_a_row_that_fits_no_memory_is_the_error_of_its_call_alone(
    batching: Batching, busy: tuple[GatedKind, Pending]
) -> None:
    kind, _ = busy
    huge = rows_of(kind, "huge")
    kind.fails = lambda rows: MemoryError("does not fit") if huge[0] in rows else None
    good = batching.submit(kind, rows_of(kind, "good", 3))
    failing = batching.submit(kind, huge)
    kind.gate.set()
    assert len(good.result()) == 3
    with pytest.raises(MemoryError, match="does not fit"):
        failing.result()


def test_a_row_goes_to_the_cpu_only_where_the_fallback_is_switched_on() -> None:
    on_cpu = SimulatedKind(pass_ms=0, row_ms=0, device="cpu-fallback")
    kind = GatedKind(fails=lambda rows: MemoryError("does not fit"))
    with pytest.raises(MemoryError):
        Batching().submit(kind, rows_of(kind, "state"), lambda: on_cpu).result()
    fallen_back = Batching(cpu_fallback=True).submit(kind, rows_of(kind, "state"), lambda: on_cpu).result()
    assert fallen_back == on_cpu.forward(rows_of(kind, "state"))


def test_the_error_of_the_cpu_is_the_error_of_the_call() -> None:
    tight = GatedKind(fails=lambda rows: MemoryError("does not fit"))
    broken = GatedKind(fails=lambda rows: ArithmeticError("nor here"))
    with pytest.raises(ArithmeticError, match="nor here"):
        Batching(cpu_fallback=True).submit(tight, rows_of(tight, "state"), lambda: broken).result()


def test_without_a_copy_for_the_cpu_the_error_is_the_lack_of_memory() -> None:
    kind = GatedKind(fails=lambda rows: MemoryError("does not fit"))
    with pytest.raises(MemoryError):
        Batching(cpu_fallback=True).submit(kind, rows_of(kind, "state")).result()


def test_rows_of_a_caller_that_has_given_up_are_dropped(batching: Batching, busy: tuple[GatedKind, Pending]) -> None:
    kind, first = busy
    given_up = batching.submit(kind, rows_of(kind, "late"))
    with answer_by(time.monotonic()), pytest.raises(DeadlinePassed, match="deadline"):
        given_up.result()
    patient = batching.submit(kind, rows_of(kind, "patient"))
    kind.gate.set()
    first.result()
    assert len(patient.result()) == 1
    assert [len(rows) for rows in kind.passes] == [1, 1]


TOKENS = rows_of(SimulatedKind(), "one")[0].tokens


@pytest.mark.parametrize("full", [{"max_rows": 2}, {"max_batch_tokens": 2 * TOKENS}], ids=["rows", "tokens"])
def test_a_window_lets_rows_gather_until_they_fill_a_pass(full: dict[str, int]) -> None:
    kind = GatedKind()
    patient = Batching(batch_wait_ms=3_600_000, **full)
    first = patient.submit(kind, rows_of(kind, "one"))
    second = patient.submit(kind, rows_of(kind, "two"))
    assert (len(first.result()), len(second.result())) == (1, 1)
    assert [len(rows) for rows in kind.passes] == [2]


def test_a_window_ends_although_nothing_more_comes() -> None:
    kind = GatedKind()
    assert len(Batching(batch_wait_ms=20).submit(kind, rows_of(kind, "one")).result()) == 1


def test_a_call_without_rows_has_its_answer() -> None:
    assert Batching().submit(GatedKind(), []).result() == []


@pytest.mark.parametrize(
    "limits", [{"max_batch_tokens": 0}, {"max_rows": 0}, {"max_waste": 1.0}, {"batch_wait_ms": -1.0}]
)
def test_limits_that_no_pass_could_keep_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a pass needs"):
        Batching(**limits)  # type: ignore[arg-type]


def test_an_observer_that_fails_harms_no_pass(caplog: pytest.LogCaptureFixture) -> None:
    def observe(report: PassReport) -> None:
        raise RuntimeError("observer")

    kind = GatedKind()
    assert len(Batching(observe=observe).submit(kind, rows_of(kind, "state")).result()) == 1
    assert "the observer of forward passes failed" in caplog.text


def test_nothing_of_a_pass_holds_its_checkpoint_afterwards(batching: Batching) -> None:
    kind = GatedKind()
    batching.submit(kind, rows_of(kind, "state")).result()
    gone = weakref.ref(kind)
    del kind
    deadline = time.monotonic() + DEADLINE_S
    while gone() is not None:  # the device's thread lets go a moment after the caller has its answer
        gc.collect()
        assert time.monotonic() < deadline


def test_rows_that_are_given_up_are_gone_when_that_returns(batching: Batching, busy: tuple[GatedKind, Pending]) -> None:
    kind, first = busy
    waiting = batching.submit(kind, rows_of(kind, "waiting"))
    waiting.drop()
    kind.gate.set()
    first.result()
    first.drop()
    assert [len(rows) for rows in kind.passes] == [1]
    with pytest.raises(RuntimeError, match="given up"):
        waiting.result()
