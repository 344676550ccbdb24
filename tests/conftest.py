"""What tests of every kind share: the golden checkpoints, and an environment without settings of the developer's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    for name in [name for name in os.environ if name.startswith(("LAYA_", "CELERY_"))]:
        del os.environ[name]


@pytest.fixture(scope="session")
def golden_checkpoints() -> dict[str, Path]:
    """Name to directory of three tiny checkpoints with random weights, in the published layout."""
    home = ROOT / "tests" / "data" / "golden" / "checkpoints"
    return {path.name: path for path in sorted(home.iterdir())}
