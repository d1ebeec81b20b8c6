"""How large the repository is: lines, statements and files of the package, the tests and the rest.

The contract of a store is test code, although the package ships it: it is counted with the tests.
Lines are all lines. A docstring is a statement.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

CONTRACT = "celery_dlock/testing/contract"


@dataclass(frozen=True, slots=True)
class Size:
    """A part of the repository; *statements* is None for what is not Python."""

    name: str
    files: int
    lines: int
    statements: int | None = None


def sizes(root: Path) -> list[Size]:
    """The parts of the repository at *root*."""
    package = root / "celery_dlock"
    contract = {*(root / CONTRACT).rglob("*.py")}
    tests = [*(root / "tests").rglob("*.py")]
    return [
        _python("package without the contract", {*package.rglob("*.py")} - contract),
        _size("Lua", [*package.rglob("*.lua")]),
        _python("contract", contract),
        _python("tests", tests),
        _python("tests with the contract", [*tests, *contract]),
        _python("scripts", [*(root / "scripts").rglob("*.py")]),
        _size("documentation", [*(root / "docs").rglob("*.rst"), *root.glob("*.md")]),
    ]


def _python(name: str, files: Iterable[Path]) -> Size:
    size = _size(name, files := [*files])
    statements = sum(
        isinstance(node, ast.stmt)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )
    return Size(name, size.files, size.lines, statements)


def _size(name: str, files: Sequence[Path]) -> Size:
    return Size(name, len(files), lines_of(files))


def lines_of(files: Iterable[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def table_of(parts: Iterable[Size]) -> Table:
    table = Table("", title="Size", title_justify="left")
    for column in ("files", "lines", "statements"):
        table.add_column(column, justify="right")
    for part in parts:
        statements = "" if part.statements is None else f"{part.statements:,}"
        table.add_row(part.name, f"{part.files:,}", f"{part.lines:,}", statements)
    return table
