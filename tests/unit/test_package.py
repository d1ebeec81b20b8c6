"""What is installed: the built package, whole, and nothing else."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import files
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import celery_dlock
from celery_dlock import policies

installed = pytest.mark.skipif(
    "TOX_ENV_NAME" not in os.environ, reason="outside tox the package is the checkout"
)


@installed
def test_the_tests_run_on_the_installed_wheel() -> None:
    package = Path(celery_dlock.__file__)

    assert package.is_relative_to(sys.prefix)
    assert "site-packages" in package.parts


@installed
def test_the_wheel_carries_py_typed_and_the_scripts_and_no_tests() -> None:
    names = {str(path) for path in files("celery-dlock") or ()}

    assert "celery_dlock/py.typed" in names
    assert any(name.startswith("celery_dlock/stores/redis/lua/") for name in names)
    top = {name.split("/")[0] for name in names if ".." not in name} - {"__pycache__"}
    modules = {name for name in top if not name.endswith(".dist-info")}
    assert modules == {"celery_dlock", "celery_dlock_pytest.py"}


#: What a process publishes that neither runs tasks nor looks at locks.
PUBLISHES = """
import sys
from celery import Celery
from celery_dlock import Debounce, Ordered, Queue, locked_task

app = Celery(broker="memory://")
app.conf.dlock_url = "memory://"
def report(day): ...
options = ({}, {"unique": "done"}, {"unique": Debounce(60, 60)})
for number, more in enumerate((*options, {"on_contention": Ordered()})):
    task = locked_task("day:{day}", app=app, name=f"report{number}", **more)(report)
    for day in (1, 1, 2):
        task.delay(day)
print(*sys.modules)
"""

#: What only a worker, a beat, a page, a command line or a monitor needs, and ``lock()``.
NOT_TO_PUBLISH = frozenset(
    {
        *("beat", "cli", "delivery", "monitoring", "operate", "ops", "testing", "web", "worker"),
        *("stores.subprocess", "tasks.acquisition", "tasks.block", "tasks.event_loop"),
    }
)


def modules_of(code: str) -> list[str]:
    """The modules of a process that runs *code*, which prints them."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_the_package_imports_no_driver() -> None:
    loaded = modules_of("import sys, celery_dlock; print(*sys.modules)")

    assert {"redis", "kazoo", "sqlalchemy"}.isdisjoint(loaded)


def test_helpers_for_tests_need_no_pytest() -> None:
    loaded = modules_of("import sys, celery_dlock.testing; print(*sys.modules)")

    assert "pytest" not in loaded


def test_a_process_that_only_publishes_imports_what_it_needs_for_that() -> None:
    loaded = modules_of(PUBLISHES)

    assert "celery_dlock.publishing.outbox" in loaded
    assert NOT_TO_PUBLISH.isdisjoint(m.removeprefix("celery_dlock.") for m in loaded)
    assert {"celery.app.trace", "redis"}.isdisjoint(loaded)


def test_every_public_name_is_there_and_documented() -> None:
    for module in (celery_dlock, policies):
        for name in module.__all__:
            assert getattr(module, name).__doc__, name


ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def test_the_lowest_versions_that_are_tested_are_the_lowest_that_are_allowed() -> None:
    asked = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    bare = [name.replace(",<3", "").replace("[binary]", "") for name in asked]  # as pip wants
    lowest = {name.replace(">=", "==") for name in bare if ">=" in name}

    floors = (ROOT / "tests/floors.txt").read_text().splitlines()

    assert {line for line in floors if not line.startswith("#")} == lowest


def test_what_is_asked_for_is_in_the_lock_and_in_the_table_of_licences() -> None:
    extras = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    asked = [Requirement(line) for line in extras if not line.startswith(PROJECT["name"])]
    groups = PYPROJECT["dependency-groups"]
    for_tests = [Requirement(line) for line in (*groups["test"], *groups["docs"])]

    pins = re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "tests/lock.txt").read_text(), re.MULTILINE)
    with (ROOT / "docs/reference/licences.csv").open() as table:
        licences = {row["package"]: row["licence"] for row in csv.DictReader(table)}

    for need in (*asked, *for_tests):
        name = canonicalize_name(need.name)
        assert any(pin == name and need.specifier.contains(version) for pin, version in pins), need
    assert all(licences[canonicalize_name(need.name)] for need in asked)
