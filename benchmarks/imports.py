"""How long a backend waits for its imports: `python -m benchmarks.imports`.

Each is imported in a fresh process, again and again; the quickest counts, because others share the machine. What must
not be imported at all is a test's matter.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from benchmarks.figures import arguments, at_most, report

LIMITS: Final = {"import producer": 0.5, "from laya import Router, BaseHook": 0.3}
"""Statement to the seconds that it may take."""

ROUNDS: Final = 15
QUICK_ROUNDS: Final = 3


def seconds(statement: str) -> float:
    """What a fresh process takes for a statement, its own start left out."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> int:
    """Measure, print, save."""
    options = arguments(__doc__).parse_args()
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    figures = [
        at_most(statement, min(seconds(statement) for _ in range(rounds)), limit, "s")
        for statement, limit in LIMITS.items()
    ]
    return report("Imports", figures, options.json)


if __name__ == "__main__":
    sys.exit(main())
