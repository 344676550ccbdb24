"""The wire leans on private parts of kombu: they are listed, and another kombu is met with an error at import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from producer import transport_surface
from producer.transport_surface import SURFACE, check_installed_kombu

HERE = Path(transport_surface.__file__).parent
MODULES = [path for path in sorted(HERE.glob("transport*.py")) if path.stem != "transport_surface"]


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(tree: ast.AST) -> Iterator[str]:
    """Names that a module defines: functions, and attributes that a class sets on itself when it is made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            yield node.attr


def test_every_private_name_of_kombu_s_is_listed() -> None:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in MODULES]
    own = {name for tree in trees for name in own_names(tree)}
    used = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    listed = {name for _, names in SURFACE for name in names}
    assert {name for name in used if private(name)} - own - listed == set()


def test_the_installed_kombu_is_the_one_that_is_meant() -> None:
    check_installed_kombu()


def test_another_release_series_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_surface, "version", lambda _: "5.8.0")
    with pytest.raises(ImportError, match=r"written for kombu 5\.7, found 5\.8\.0: install 'kombu~=5\.7\.0'"):
        check_installed_kombu()


def test_a_name_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poller:
        def __init__(self) -> None:
            self.get = None

    monkeypatch.setattr(transport_surface, "SURFACE", ((Poller, ("get", "on_poll_start", "_channels")),))
    with pytest.raises(ImportError, match=r"has no Poller\.on_poll_start, Poller\._channels in its Redis transport"):
        check_installed_kombu()
