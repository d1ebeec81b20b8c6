"""The page about the architecture names every package with its size, and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import celery_dlock

PAGE = Path("docs/explanation/architecture.rst").read_text(encoding="utf-8")
PACKAGE = Path(celery_dlock.__file__).parent

ROWS = dict(
    re.findall(
        r"   \* - (``\w+``(?:, ``\w+``)*)\n(?:     - .*\n(?:       .*\n)*)+?     - ([\d,]+)\n", PAGE
    )
)


def parts(row: str) -> list[Path]:
    return [PACKAGE / name for name in re.findall(r"``(\w+)``", row)]


def lines(part: Path) -> int:
    files = part.rglob("*") if part.is_dir() else [part.with_suffix(".py")]
    code = (file for file in files if file.suffix in {".py", ".lua"})
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in code)


@pytest.mark.parametrize("row", ROWS)
def test_a_package_is_about_as_large_as_the_page_says(row: str) -> None:
    assert sum(map(lines, parts(row))) == pytest.approx(int(ROWS[row].replace(",", "")), rel=0.1)


def test_no_package_is_missing() -> None:
    told = {part.name for row in ROWS for part in parts(row)}
    there = {file.stem for file in PACKAGE.iterdir() if file.suffix in {"", ".py"}}
    assert told == {name for name in there if not name.startswith("_")}


def test_the_core_to_trust_is_as_large_as_the_page_says() -> None:
    trusted = re.search(r"relies on (``core``.*?)With memory,", PAGE, re.DOTALL)
    said = re.search(r"that is ([\d,]+) lines", PAGE)
    assert trusted
    assert said
    beside = ["runtime", "settings", "registry", "forking", "files", "errors", "__init__"]
    store = ["base", "change", "memory", "unreadable", "subprocess", "sql", "redis"]
    core = [
        *parts(trusted[1]),
        *(PACKAGE / name for name in beside),
        *(PACKAGE / "stores" / name for name in store),
    ]
    assert sum(map(lines, core)) == pytest.approx(int(said[1].replace(",", "")), rel=0.1)


@pytest.mark.parametrize("file", sorted(set(re.findall(r"``(\w+/[\w/]*(?:\.py)?)``", PAGE))))
def test_a_file_that_is_named_is_there(file: str) -> None:
    assert (PACKAGE / file).exists() or Path(file).exists()
