"""Fuzz what reads messages, for as long as you like; what breaks something is kept in the corpus.

python tests/fuzz.py --minutes 10
python tests/fuzz.py --minutes 2 --target message
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.unit.fuzzing import CORPUS, TARGETS, inputs, run


def fuzz(target: str, number: int, examples: int = 500) -> int:
    """Give a target so many inputs; how many were given until something broke, or all."""
    given_inputs = 0
    last = b""

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def each(data: st.DataObject) -> None:
        nonlocal given_inputs, last
        last = data.draw(inputs(target))
        given_inputs += 1
        run(target, last)

    try:
        each()
    except Exception:
        path = CORPUS / target / hashlib.sha256(last).hexdigest()[:12]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(last)
        traceback.print_exc()
        print(f"{target}: broken by {path} ({len(last)} bytes, the smallest found)", file=sys.stderr)
        raise
    return given_inputs


def main() -> int:
    """Take the targets in turns until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--target", choices=TARGETS, action="append")
    options = parser.parse_args()
    until = time.monotonic() + options.minutes * 60
    counts = dict.fromkeys(options.target or TARGETS, 0)
    broken: set[str] = set()
    number = int(time.time())
    while time.monotonic() < until and len(broken) < len(counts):
        number += 1
        for target in counts.keys() - broken:
            try:
                counts[target] += fuzz(target, number)
            except Exception:  # noqa: BLE001 - it was told; the others go on
                broken.add(target)
    for target, count in counts.items():
        print(f"{target:<10} {count:>9} inputs{'  BROKEN' if target in broken else ''}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
