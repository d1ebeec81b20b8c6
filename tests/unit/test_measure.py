"""``make measure`` counts calls, lines and statements as its documentation says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scripts.measure.recorder import Recorder
from scripts.measure.size import Size, sizes

FIRST = """
from contextlib import contextmanager
from itertools import chain

from toy import second
from toy.testing import helper


def entry():
    with block():
        names = [second.name(n) for n in range(2)]
    pick = lambda: second.name(0)
    pick()
    helper.help_out()
    return [*numbers(), *names]


@contextmanager
def block():
    yield


def numbers():
    yield second.name(1)
    yield from chain(number for number in range(3))


def abandoned():
    generator = numbers()
    generator.close()
"""

SECOND = """
def name(number):
    return str(number)
"""

HELPER = """
from toy import second


def help_out():
    return second.name(5)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module ``toy.first``, of a package with two files and a helper for tests."""
    files = {"__init__": "", "first": FIRST, "second": SECOND}
    files |= {"testing/__init__": "", "testing/helper": HELPER}
    for name, text in files.items():
        path = tmp_path / "toy" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("toy", "toy.first", "toy.second", "toy.testing", "toy.testing.helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("toy.first")


def test_a_call_counts_once_without_its_comprehensions(toy: ModuleType, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "toy")

    with recorder.walk("a walk"):
        toy.entry()
        toy.abandoned()

    (walk,) = recorder.walks
    first, second = Path("first.py"), Path("second.py")
    # entry, block | name, name, name, name (called by the helper) | numbers | name | abandoned
    assert walk.calls == (*[first] * 2, *[second] * 4, first, second, first)
    assert walk.files == {first, second}
    assert walk.changes == 4


def test_the_contract_is_counted_with_the_tests(tmp_path: Path) -> None:
    files = {
        "celery_dlock/__init__.py": '"""Title."""\n\nif True:\n    a = 1\n',
        "celery_dlock/rule.lua": "return 1\n\n",
        "celery_dlock/testing/contract/queue.py": "b = 2\n",
        "tests/test_a.py": "c = 3\nd = [\n    4,\n]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    parts = {size.name: size for size in sizes(tmp_path)}

    package = "package without the contract"
    assert parts[package] == Size(package, files=1, lines=4, statements=3)
    assert parts["Lua"] == Size("Lua", files=1, lines=2)
    together = "tests with the contract"
    assert parts[together] == Size(together, files=2, lines=5, statements=3)


@pytest.mark.server("redis")
def test_the_walks_are_made_and_shown(redis_server: object) -> None:
    command = [sys.executable, "-m", "scripts.measure", "walks"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for walk in ("uncontended task", "parked", "woken and run", "a duplicate call", "with lock()"):
        assert walk in printed
