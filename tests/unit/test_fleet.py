"""How the processes of `laya-workers up` and `demo` are ended. That nothing is left of them is tested elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from worker.fleet import LocalFleet, Member

CHILD = """
import pathlib, signal, sys, time
noted, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
def note(*_):
    with noted.open("a") as file:
        file.write("asked\\n")
signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
while not noted.exists():
    time.sleep(0.01)
time.sleep(seconds)
"""


def child(noted: Path, seconds: float) -> subprocess.Popen[bytes]:
    """A process that writes down each SIGTERM, and ends some time after the first."""
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(noted), str(seconds)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


def test_each_process_is_asked_once_to_end_also_where_another_takes_longer(tmp_path: Path) -> None:
    """A worker that is asked twice does not finish its work."""
    fleet = LocalFleet({}, quiet=True)
    for name, seconds in (("quick", 0.1), ("slow", 0.5)):
        process = child(tmp_path / name, seconds)
        fleet._members[name] = Member(name, (), {}, process, None)
    fleet.stop()
    assert [member.end for member in fleet.members] == ["ended with exit code 0"] * 2
    assert [(tmp_path / name).read_text() for name in ("quick", "slow")] == ["asked\n"] * 2
