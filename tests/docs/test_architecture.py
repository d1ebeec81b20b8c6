"""The page about the architecture names every package with its size, and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import celery_dlock
from scripts.measure import page

PAGE = page.PAGE.read_text(encoding="utf-8")
PACKAGE = Path(celery_dlock.__file__).parent
SIZES = list(page.sizes(PAGE, PACKAGE))


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "-".join(size.names))
def test_a_package_is_about_as_large_as_the_page_says(size: page.Size) -> None:
    assert size.counted == pytest.approx(size.written, rel=0.1), "python -m scripts.measure page"


def test_no_package_is_missing() -> None:
    named = {name for size in SIZES for name in size.names} - {"trusted", "Lua"}
    present = {file.stem for file in PACKAGE.iterdir() if file.suffix in {"", ".py"}}
    assert named == {name for name in present if not name.startswith("_")}


@pytest.mark.parametrize("file", sorted(set(re.findall(r"``(\w+/[\w/]*(?:\.py)?)``", PAGE))))
def test_a_file_that_is_named_is_there(file: str) -> None:
    assert (PACKAGE / file).exists() or Path(file).exists()
