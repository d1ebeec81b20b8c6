"""The comparison, once as its user starts it: who has a fence is right, the others are not."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from example_project.compare.__main__ import as_expected
from example_project.compare.figures import FILE, Figures
from tests.demo.command import Command
from tests.demo.shop.conftest import POSTGRESQL
from tests.pictures.drawing import shows_terminal
from tests.services.until import until

RIGHT = Figures(
    there=2, sold=2, left=0, charged_twice=0, owed=9, charged=9, reports=1, refused=1, alerts=1
)
STOCK: dict[str, Any] = {"sold": 3}
MONEY: dict[str, Any] = {"charged_twice": 1}
REPORT: dict[str, Any] = {"reports": 2}

NO_LOCK = replace(RIGHT, **STOCK, **MONEY, **REPORT)
LOCK_ONLY = replace(RIGHT, **STOCK, **MONEY)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """For a server that another user runs, which cannot enter the folders of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield folder


@pytest.fixture
def compare(tmp_path: Path) -> Command:
    return Command(tmp_path, "example_project.compare")


def test_it_shows_what_it_should() -> None:
    assert as_expected(NO_LOCK, LOCK_ONLY, RIGHT)


@pytest.mark.parametrize(
    "sides",
    [
        (replace(NO_LOCK, sold=2), LOCK_ONLY, RIGHT),
        (replace(NO_LOCK, reports=1), LOCK_ONLY, RIGHT),
        (NO_LOCK, replace(LOCK_ONLY, charged_twice=0), RIGHT),
        (NO_LOCK, LOCK_ONLY, replace(RIGHT, **STOCK)),
        (NO_LOCK, LOCK_ONLY, replace(RIGHT, left=1)),
        (NO_LOCK, LOCK_ONLY, replace(RIGHT, **MONEY)),
        (NO_LOCK, LOCK_ONLY, replace(RIGHT, charged=8)),
        (NO_LOCK, LOCK_ONLY, replace(RIGHT, **REPORT)),
        (NO_LOCK, LOCK_ONLY, replace(RIGHT, reports=0)),
        (NO_LOCK, LOCK_ONLY, replace(RIGHT, refused=0)),
    ],
)
def test_anything_else_is_not_what_it_should_show(sides: tuple[Figures, Figures, Figures]) -> None:
    assert not as_expected(*sides)


def row(output: str, label: str) -> list[str]:
    """What the table says beside *label*: should be, no lock, lock only, lock and fence."""
    plain = Text.from_ansi(output).plain
    line = next(line for line in plain.splitlines() if label in line)
    return [cell.strip() for cell in line.split("│")[2:-1]]


@pytest.mark.slow
@pytest.mark.parametrize("database", [(), pytest.param(("postgresql",), marks=POSTGRESQL.marks)])
def test_only_a_lock_with_a_fence_damages_nothing(
    database: tuple[str, ...], open_folder: Path
) -> None:
    compare = Command(open_folder, "example_project.compare")
    with compare.started(*database, FORCE_COLOR="1", COLUMNS="92") as process:
        assert process.wait(200) == 0, compare.output
        compare.check_nothing_is_left()
    shows_terminal("compare.svg", "python -m example_project.compare", compare.output.strip(), 92)
    for label, there, no_lock in (
        ("lamps sold", "2", "✗ 5"),
        ("orders charged twice", "0", "✗ 5"),
    ):
        should_be, careless, lock_only, fenced = row(compare.output, label)
        assert (should_be, careless, lock_only[0], fenced) == (there, no_lock, "✗", there)
    assert row(compare.output, "charged too much")[3] == "+0.00"
    assert row(compare.output, "reports")[1] == "✗ 3"
    assert row(compare.output, "reports")[3] == "1"
    assert int(row(compare.output, "late writes refused")[3]) > 0
    assert int(row(compare.output, "alerts")[3]) > 0


@pytest.mark.slow
def test_interrupted_while_a_worker_is_stopped_it_leaves_nothing(compare: Command) -> None:
    with compare.forked() as process:
        until("a worker is stopped", lambda: "stopped worker" in compare.output, timeout=120)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130, compare.output
        compare.check_nothing_is_left()


DEFECTS = {
    "the fence lets everybody pass": (
        "from celery_dlock import fencing\nfencing.admit = lambda *_, **__: None",
        "stock",
    ),
    "the provider honours no key": (
        "from example_project.shop import provider\ncharge = provider.charge\n"
        "provider.charge = lambda order_id, amount, key=None: charge(order_id, amount)",
        "money",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_fenced_side_is_damaged_when(defect: str, tmp_path: Path) -> None:
    patch, damaged = DEFECTS[defect]
    shop = tmp_path / "shop"
    side = Command(tmp_path, "example_project.compare.side")
    with side.forked("tasks", DEFECT=patch, SHOP_DIR=str(shop), SHOP_DATABASE="") as process:
        assert process.wait(200) == 0, side.output
    assert damaged in Figures(**json.loads((shop / FILE).read_text())).wrong
