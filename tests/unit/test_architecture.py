"""Who may import whom: between the packages, between the library's two halves, and from outside.

The rules are read from the syntax trees, so that a forbidden import fails here although nobody has run it;
the last tests import the light packages in a fresh process and look at what came along.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The packages that each package may import, besides itself.
MAY_IMPORT = {
    "laya": set(),
    "hooks": {"laya"},
    "producer": {"laya"},
    "worker": {"laya", "hooks", "producer"},
}

# The half of the library that computes. A web backend imports the other, which is everything else in `laya`.
NEEDS_TORCH = {
    "laya.agent",
    "laya.checkpoint",
    "laya.device",
    "laya.embedding",
    "laya.embedding_model",
    "laya.model",
    "laya.precision",
    "laya.published",
    "laya.simulated",
    "laya.small_build",
    "laya.small_e5",
    "laya.tokenizer",
    "laya.weights",
}

# What makes an import slow or large: a backend must never load any of it.
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy", "scipy", "sklearn"}


def modules() -> dict[str, Path]:
    """Every module of the four packages, by dotted name."""
    found = {}
    for package in MAY_IMPORT:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def statements(body: Iterable[ast.AST], *, into_functions: bool) -> Iterator[ast.AST]:
    """All nodes under `body`, in or out of function bodies; what only a type checker sees is left out."""
    for node in body:
        yield node
        if is_type_checking(node) or (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not into_functions
        ):
            continue
        yield from statements(ast.iter_child_nodes(node), into_functions=into_functions)


def imports(module: str, *, into_functions: bool) -> set[str]:
    """The dotted names that `module` imports; `from a import b` is `a`, and `a.b` where that is a module."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in statements(tree.body, into_functions=into_functions):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{anchor}.{base}" if base else anchor
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in MODULES)
    return names


def with_parents(name: str) -> Iterator[str]:
    """`a.b.c` runs `a` and `a.b` too."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def reached_at_import(start: str) -> dict[str, str]:
    """What importing `start` imports, directly or through our own modules, each with who did it."""
    reached: dict[str, str] = {}
    waiting = [(name, "the caller") for name in with_parents(start)]
    while waiting:
        name, importer = waiting.pop()
        if name in reached:
            continue
        reached[name] = importer
        if name in MODULES:
            for imported in imports(name, into_functions=False):
                waiting.extend((parent, name) for parent in with_parents(imported))
    return reached


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_package_imports_only_those_below_it(module: str) -> None:
    package = module.partition(".")[0]
    ours = {name.partition(".")[0] for name in imports(module, into_functions=True)} & set(MAY_IMPORT)
    assert ours <= MAY_IMPORT[package] | {package}


@pytest.mark.parametrize("module", sorted(name for name in MODULES if name.partition(".")[0] == "laya"))
def test_only_the_half_that_computes_reaches_anything_heavy(module: str) -> None:
    heavy = {name for name in reached_at_import(module) if name.partition(".")[0] in HEAVY}
    assert bool(heavy) == (module in NEEDS_TORCH), sorted(heavy)


@pytest.mark.parametrize("module", ["producer", "worker", "worker.app", "worker.cli.commands", "hooks"])
def test_what_a_backend_or_a_command_imports_reaches_nothing_heavy(module: str) -> None:
    heavy = {name: by for name, by in reached_at_import(module).items() if name.partition(".")[0] in HEAVY}
    assert heavy == {}


@pytest.mark.parametrize("module", sorted(name for name in MODULES if name.split(".")[0] in {"laya", "hooks"}))
def test_the_library_knows_nothing_of_the_queue(module: str) -> None:
    queue = {"celery", "kombu", "flower"} | ({"redis"} if module.startswith("laya") else set())
    assert {name.partition(".")[0] for name in imports(module, into_functions=True)} & queue == set()


@pytest.mark.parametrize("statement", ["import laya", "import producer", "import worker.app", "import hooks"])
def test_a_fresh_process_has_loaded_nothing_heavy(statement: str) -> None:
    code = f"import sys\n{statement}\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"util", "utils", "helper", "helpers", "common", "misc", "manager"}
    assert [name for name in MODULES if name.rpartition(".")[2] in empty] == []
