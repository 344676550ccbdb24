"""The table of faults names each once, and no test that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ROWS = {
    int(number): re.findall(r"`([^`]+)`", tests)
    for number, tests in re.findall(
        r"^\| (\d+) \|[^|]*\|([^|]*)\|$",
        Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}


def test_every_fault_of_the_catalogue_is_there() -> None:
    assert sorted(ROWS) == list(range(1, 33))


@pytest.mark.parametrize(("number", "node"), [(number, node) for number, nodes in ROWS.items() for node in nodes])
def test_a_test_that_holds_a_fault_exists(number: int, node: str) -> None:
    path, _, name = node.partition("::")
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    functions = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in functions if name else any(one.startswith("test_") for one in functions), number
