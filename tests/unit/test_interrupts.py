"""What a foreground command hears of signals, and what its caller sees of the second one."""

from __future__ import annotations

import signal

import pytest

from worker.interrupts import Interrupts, Stopped


def test_the_first_signal_is_told_at_once_and_raised_where_the_command_asks() -> None:
    told: list[signal.Signals] = []
    with Interrupts(lambda: None, told.append) as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert told == [signal.SIGTERM]
        with pytest.raises(Stopped, match="SIGTERM"):
            interrupts.check()
        with pytest.raises(Stopped):
            interrupts.wait(60)


def test_an_error_that_the_second_signal_leads_to_is_told_as_the_interruption_that_it_is() -> None:
    ended: list[str] = []

    def run() -> None:
        with Interrupts(lambda: ended.append("killed")):
            signal.raise_signal(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                raise ConnectionError("the server was killed by the second signal")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert ended == ["killed"]


def test_handlers_are_as_they_were_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interrupts(lambda: None):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
