"""The schedules run most lines of what they are of, and what cannot run is listed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import celery_dlock
from tests.simulation.lines import ELSEWHERE, compared, measured

pytestmark = pytest.mark.once


def _named(tree: ast.AST, within: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield within + node.name
            yield from _named(node, f"{within}{node.name}.")


def test_what_is_said_not_to_run_is_there() -> None:
    here, gone = Path(celery_dlock.__file__).parent, []
    for files in ELSEWHERE.values():
        for name, listed in files.items():
            known = set(_named(ast.parse((here / name).read_text())))
            gone += [f"{name}: {each}" for each in listed if each not in known]

    assert gone == []


@pytest.mark.planted  # with the defects: it is about the machine that has to find them
@pytest.mark.slow
@pytest.mark.timeout(900)  # coverage takes three times as long as the schedules
def test_the_schedules_run_what_they_are_of() -> None:
    told = compared(measured("1", "1000"))

    assert [text for text, is_wrong in told if is_wrong] == []
