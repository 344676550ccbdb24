"""A real Chromium, driven by playwright. Servers and workers are the fixtures of the integration tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.integration.conftest import backend, checkpoints, make_worker, questions

__all__ = ["backend", "checkpoints", "make_worker", "questions"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PICTURES = os.environ.get("SCREENSHOTS")
"""Directory that pictures for the docs are written to: `SCREENSHOTS=docs/pictures pytest tests/browser`."""

PATIENCE_MS = 60_000
"""For what a page should do, or show: a busy machine is no failure, and what is right is seen at once."""

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")  # not of the session: its driver keeps an event loop running in this thread
def browser() -> Iterator[Browser]:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium: install one (`apt-get install chromium`), or name it in CHROMIUM")
    with sync_playwright() as driver:
        # Tests run as root in containers, where Chromium's own sandbox cannot be had.
        launched = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page of a desktop; what its scripts complain of fails the test."""
    complaints: list[str] = []
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    opened.close()
    assert complaints == []


def picture(page: Page, name: str) -> None:
    """Keep a picture for the docs, where it is asked for."""
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(PICTURES) / f"{name}.png")
