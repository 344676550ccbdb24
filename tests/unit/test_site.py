"""The pages as a site: built without a warning, every page in its table of contents, every link leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SCRIPT = "mermaid.esm.min.mjs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home, script = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("mermaid")
    (script / SCRIPT).touch()  # a stand-in for the npm package
    (script / f"{SCRIPT}.map").touch()
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(home / "trees"), str(DOCS), str(home)],
        env={**os.environ, "MERMAID_DIST": str(script)},
        capture_output=True,
        text=True,
    )
    # A page that no table of contents names, a link to nowhere, a heading out of order: each is a warning.
    assert built.returncode == 0, built.stderr
    return home


def has(page: Path, anchor: str) -> bool:
    return page.suffix != ".html" or f'id="{anchor}"' in page.read_text(encoding="utf-8")


def test_every_page_becomes_one_of_the_site(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_every_link_inside_the_site_leads_somewhere(site: Path) -> None:
    dead = []
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        for link in re.findall(r'<(?:a|img|link|script)\b[^>]*?\s(?:href|src)="([^"]+)"', html):
            target, _, anchor = link.partition("#")
            if "://" in link or link.startswith(("mailto:", "data:")):
                continue
            path = (page.parent / unquote(target.partition("?")[0])).resolve() if target else page
            if not path.exists() or (anchor and not has(path, anchor)):
                dead.append(f"{page.relative_to(site)}: {link}")
    assert dead == []


def test_a_site_with_the_script_of_its_diagrams_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert any(f"_static/{SCRIPT}" in html for html in pages.values())
    fetched = r'(?:src="|\bimport\b[^;]*?["\']|rel="stylesheet"[^>]*href=")(https?://[^"\']+)'
    assert {page.name: found for page, html in pages.items() if (found := re.findall(fetched, html))} == {}
    assert not list(site.rglob(f"{SCRIPT}.map"))
