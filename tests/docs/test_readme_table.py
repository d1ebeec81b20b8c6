"""The lines of code in README's first table do what stands beside them is: each is tried."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from celery import Celery
from celery.bin.celery import celery as celery_command
from click.testing import CliRunner

import celery_dlock
from celery_dlock import fencing
from celery_dlock.testing import in_memory, inline_worker
from tests.faults.test_readme_rows import ELSEWHERE, SCENES
from tests.services import readme

README = Path(__file__).resolve().parents[2] / "README.md"
TABLE = (
    README.read_text().partition("| I want … | I write … |\n|---|---|\n")[2].partition("\n\n")[0]
)
LINES = re.findall(r"^\| .+ \| `(.+)` \|$", TABLE, re.MULTILINE)

PUBLIC = {name: getattr(celery_dlock, name) for name in celery_dlock.__all__}
PUBLIC |= {"fencing": fencing, "__name__": "shop"}

#: Behind a line, so that it can be run.
BEHIND = {
    "@": "def report(order_id: int = 42, tenant: str = 'acme') -> None: ...",
    "with": "    pass",
}


def test_the_table_is_read() -> None:
    assert len(LINES) == 12
    assert TABLE.count("\n") == 11


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("@")])
def test_a_task_that_is_defined_so_runs(line: str) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.dlock_url = "memory://"
    names = {**PUBLIC, "app": app}
    exec(f"{line[:-1]}, app=app, name={line!r})\n{BEHIND['@']}", names)

    with inline_worker(app) as worker, in_memory(app) as clock:
        names["report"].delay()
        clock.advance(10)  # of a burst the last call has come then
        worker.sweep()
        assert worker.deliver() == "succeeded"


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith(("with", "fencing"))])
def test_a_block_that_is_written_so_runs(line: str) -> None:
    app = Celery("shop", broker="memory://")
    app.conf.dlock_url = "memory://"
    with closing(sqlite3.connect(":memory:")) as db, db:
        fencing.create_table(db)
        names = {**PUBLIC, "app": app, "db": db}
        block = (
            f"{line}\n{BEHIND['with']}" if line.startswith("with") else f"with held:\n    {line}"
        )
        exec(block, {**names, "held": celery_dlock.lock("order:42", app=app)})


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("$")])
def test_a_command_that_is_written_so_exists(line: str) -> None:
    arguments = line.removeprefix("$ celery -A shop ").split()

    shown = CliRunner().invoke(celery_command, [*arguments, "--help"])

    assert shown.exit_code == 0


def test_each_row_is_run_with_two_workers_and_a_kill() -> None:
    assert {*readme.ROWS, *readme.POLICIES} == {*SCENES, *ELSEWHERE}
    for file, test in ELSEWHERE.values():
        assert f"def {test}(" in (README.parent / file).read_text()
