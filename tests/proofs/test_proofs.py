"""A run that leaves out a kind of store fails, and the lists are those of the pages and classes."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.proofs.listed import FOLDERS, KINDS, contract, missing, promises, read, suite_of
from tests.proofs.record import SCHEMES

ROOT = Path(__file__).parents[2]
PAGES = ("promises", "failure-windows")


def test_each_promise_and_window_is_in_the_list_and_nothing_else_is() -> None:
    pages = [(ROOT / f"docs/explanation/{page}.rst").read_text("utf-8") for page in PAGES]
    named = re.findall(r"^     - ``(test_\w+)``$", "".join(pages), flags=re.MULTILINE)

    assert set(promises()) == set(named)


def test_no_promise_is_in_two_groups_of_the_list() -> None:
    tests = [test for group in read("promises.toml")["shown"] for test in group["tests"]]

    assert len(tests) == len(set(tests))


@pytest.mark.parametrize("folder", ["rules", "storage"])
def test_each_class_of_the_contract_is_in_the_table_and_nothing_else_is(folder: str) -> None:
    modules = [
        importlib.import_module(f"tests.contract.{folder}.{file.stem}")
        for file in (ROOT / "tests/contract" / folder).glob("*.py")
    ]
    there = {
        suite
        for module in modules
        for _, suite in inspect.getmembers(module, inspect.isclass)
        if suite.__module__ == module.__name__ and any(n.startswith("test_") for n in vars(suite))
    }

    listed = {
        suite_of(part, name)
        for part, table in read("contract.toml").items()
        for name in table["classes"]
        if FOLDERS[part] == folder
    }
    assert listed == there


def test_each_kind_of_the_lists_is_known_and_has_its_stores() -> None:
    kinds = {kind for proofs in (promises(), contract()) for row in proofs.values() for kind in row}

    assert kinds <= KINDS.keys()
    assert set().union(*KINDS.values()) == set(SCHEMES.values())


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ({"test_a": ["memory", "redis+cluster"]}, []),
        ({"test_a": ["memory"]}, ["test_a has not passed on redis, but on ['memory']"]),
        ({"test_b": ["memory", "redis"]}, ["test_a has not passed"]),
    ],
)
def test_what_was_not_shown_on_a_kind_is_told(shown: dict[str, list[str]], said: list[str]) -> None:
    assert list(missing({"test_a": ["memory", "redis"]}, shown)) == said


def test_what_was_skipped_is_not_asked_for() -> None:
    assert not list(missing({"test_a": ["redis"]}, {"test_a": ["memory"]}, waived={"test_a"}))


@pytest.mark.parametrize(
    ("chosen", "whole"),
    [
        ([], True),
        (["-m", "not planted"], True),
        (["-m", "not slow"], False),
        (["-k", "grow"], False),
        (["test_one.py"], False),
    ],
)
def test_a_whole_run_that_does_not_show_all_fails(
    tmp_path: Path, chosen: list[str], whole: bool
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    (tmp_path / "test_one.py").write_text(
        "from celery_dlock.registry import open_backend\n"
        "from celery_dlock.stores.base import BackendOptions\n"
        "def test_a_hundred_grants_within_one_instant_grow_strictly():\n"
        "    open_backend('memory://', BackendOptions())\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.proofs.record", *chosen],
        cwd=tmp_path,
        check=False,
        env={"PYTHONPATH": str(ROOT), "CI": "true"},
        capture_output=True,
        text=True,
    )

    said = "instant_grow_strictly has not passed on redis, but on ['memory']" in run.stdout
    assert (run.returncode, said) == ((1, True) if whole else (0, False)), run.stdout
