"""Each promise and each failure window that is documented has its test, named beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_dlock import testing

TESTS = Path(__file__).parent.parent
PAGES = TESTS.parent / "docs" / "explanation"


@pytest.mark.parametrize("page", ["promises", "failure-windows"])
def test_every_row_has_a_test_that_exists(page: str) -> None:
    rows = _rows(page)

    named = [re.findall(r"^     - ``(test_\w+)``$", row, flags=re.MULTILINE) for row in rows]
    assert [row for row, names in zip(rows, named, strict=True) if len(names) != 1] == []
    assert {names[0] for names in named} - set(_tests()) == set()


def test_windows_are_numbered() -> None:
    rows = _rows("failure-windows")

    assert [row.splitlines()[0] for row in rows] == [str(n) for n in range(1, len(rows) + 1)]


def _rows(page: str) -> list[str]:
    """The rows of a page's tables, without their heads."""
    text = (PAGES / f"{page}.rst").read_text(encoding="utf-8")
    _, *rows = re.split(r"^   \* - ", text, flags=re.MULTILINE)
    assert len(rows) > 50
    return [row for row in rows if not row.startswith("#")]


def _tests() -> Iterator[str]:
    contract = Path(str(testing.__file__)).parent
    for folder in (TESTS, contract):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    yield node.name
