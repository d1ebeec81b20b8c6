"""How Sphinx builds this documentation: ``make checks``."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the shop in example_project/

project = "celery-dlock"
author = "The celery-dlock authors"
copyright = f"2026, {author}"
release = version = installed("celery-dlock")

# The second of them says to a static host that the files are to be served as they are.
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.githubpages",
    "celery.contrib.sphinx",
    "myst_parser",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_search_scorer = str(ROOT / "docs/scorer.js")
html_title = f"celery-dlock {release}"

autodoc_use_legacy_class_based = True  # celery.contrib.sphinx needs it
autodoc_member_order = "bysource"
autodoc_typehints = "none"
