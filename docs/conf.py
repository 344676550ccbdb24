"""How the pages become a site: `make docs`, or `sphinx-build -W docs build/docs`."""

import os
import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

project = "laya-workers"
version = release = _PROJECT["version"]
author = "the laya-workers developers"
copyright = author  # noqa: A001 - Sphinx's own name for it

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
root_doc = "index"
# Beside the pages' own: what of mermaid's package no browser loads.
exclude_patterns = ["build", "**/*.map", "**/*.ts", "**/mermaid.core*", "**/mermaid.esm", "mermaid*.js"]
nitpicky = True

# Pages read as well on a code host: plain Markdown, diagrams as fenced blocks, headings as link targets.
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = "laya-workers"
# The diagrams' script comes from a network, or from the unpacked npm package `mermaid`: for a site that needs none.
MERMAID = os.environ.get("MERMAID_DIST")
html_static_path: list[str] = [MERMAID] if MERMAID else []
mermaid_use_local = "mermaid.esm.min.mjs" if MERMAID else ""
html_theme_options = {"navigation_with_keys": True}
# Drawn in the reader's browser; where the script cannot be loaded, a page shows the diagram's text.
mermaid_output_format = "raw"
