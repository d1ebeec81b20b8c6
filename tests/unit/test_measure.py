"""``make measure`` counts calls, lines and statements as its documentation says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from scripts.measure.layers import changed, layer_of
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


def test_a_call_counts_once_and_neither_its_comprehensions_nor_what_is_there_for_tests(
    toy: ModuleType, tmp_path: Path
) -> None:
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


def test_nothing_is_recorded_after_the_walk(toy: ModuleType, tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "toy")
    with recorder.walk("empty"):
        pass
    toy.entry()
    assert recorder.walks[0].calls == ()


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("celery_dlock/core/machine.py", "core"),
        ("celery_dlock/stores/redis/lua/key.lua", "Lua"),
        ("celery_dlock/stores/redis/store.py", "stores"),
        ("celery_dlock/operate.py", "ops, cli, web, operate"),
        ("celery_dlock/settings.py", "monitoring, settings, errors"),
        ("celery_dlock/testing/contract/queue.py", "contract"),
        ("tests/contract/rules/holding.py", "contract"),
        ("tests/contract/test_redis.py", "tests"),
        ("celery_dlock/testing/inline.py", "the rest of the package"),
        ("celery_dlock/beat/leader.py", "the rest of the package"),
        ("tests/README.md", "tests"),
        ("CHANGELOG.md", "docs"),
        ("docs/conf.py", "docs"),
        ("celery_dlock_pytest.py", "scripts and others"),
    ],
)
def test_each_file_has_one_layer(path: str, layer: str) -> None:
    assert layer_of(path) == layer


def test_lines_of_commits_are_added_up_by_file(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *names, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def commit(files: dict[str, bytes]) -> None:
        for name, data in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        git("add", "--all")
        git("commit", "-m", "change")

    rule = "celery_dlock/core/rule.py"
    git("init")
    commit({"README.md": b"1\n"})
    commit({rule: b"1\n2\n3\n4\n", "docs/a.png": b"\0\1"})
    git("mv", rule, "celery_dlock/core/renamed rule.py")
    commit({"tests/test_rule.py": b"1\n"})
    commit({"README.md": b"2\n"})

    def lines(*revisions: str) -> dict[str, int]:
        total = Counter[str]()
        for file in changed(tmp_path, revisions):
            total[file.path] += file.lines
        return dict(total)

    renamed = "celery_dlock/core/renamed rule.py"
    assert lines("HEAD~1") == {renamed: 0, "tests/test_rule.py": 1}
    assert lines("HEAD~2", "HEAD") == {rule: 4, "docs/a.png": 0, "README.md": 2}
    everything = {renamed: 4, "docs/a.png": 0, "README.md": 2, "tests/test_rule.py": 1}
    assert lines("HEAD~3..HEAD") == everything


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
