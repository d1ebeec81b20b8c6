"""Each failure window that is documented has its test, by the name that stands beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from celery_dlock import testing

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "explanation" / "failure-windows.rst"


def test_every_window_has_a_test_that_exists() -> None:
    rows = re.split(r"^   \* - ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[2:]

    assert [row.splitlines()[0] for row in rows] == [str(n) for n in range(1, len(rows) + 1)]
    named = [re.findall(r"^     - ``(test_\w+)``$", row, flags=re.MULTILINE) for row in rows]
    assert all(len(names) == 1 for names in named)
    assert {names[0] for names in named} - set(_tests()) == set()


def _tests() -> Iterator[str]:
    contract = Path(str(testing.__file__)).parent
    for folder in (TESTS, contract):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    yield node.name
