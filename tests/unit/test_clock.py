"""Time on a machine whose clock is set while it works."""

from __future__ import annotations

import pytest

from worker.clock import ServerClock


class Machine:
    """What a machine's two clocks show."""

    def __init__(self) -> None:
        self.wall, self.passed = 1000.0, 50.0
        self.clock = ServerClock(lambda: self.wall, lambda: self.passed)

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_without_a_server_there_is_its_own_clock_alone(machine: Machine) -> None:
    assert machine.clock.ahead is None
    assert machine.clock.now() == machine.wall


def test_a_jump_is_seen_before_the_server_is_asked_again(machine: Machine) -> None:
    machine.clock.heard(1000.5)
    machine.wait(10)
    assert machine.clock.ahead == pytest.approx(-0.5)
    machine.wall += 3600
    assert machine.clock.ahead == pytest.approx(3599.5)
    machine.clock.heard(1010.5)
    assert machine.clock.ahead == pytest.approx(3599.5)


@pytest.mark.parametrize("jump", [-3600, 0, 3600])
def test_no_request_is_late_that_is_not_by_both_clocks(machine: Machine, jump: float) -> None:
    machine.clock.heard(1000.0)
    machine.wall += jump
    machine.wait(10)
    assert machine.clock.now() == pytest.approx(1010.0 + min(jump, 0))
