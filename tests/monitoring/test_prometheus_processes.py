"""Several processes of a host count together, whatever becomes of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.monitoring.forking import CHILDREN
from tests.services.exposition import exposition, samples
from tests.services.until import until
from tests.workers.conftest import MakeLab


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the processes of a test count."""
    where = tmp_path / "metrics"
    where.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(where))
    return where


def counted(task: str = "charge", what: str = "dlock_stale_rejected_total") -> float:
    return samples(exposition(), task).get(what, 0)


def run(how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.monitoring.forking", how]
    return subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)


def test_children_forked_by_one_that_is_counting_count_for_themselves(folder: Path) -> None:
    taken = int(run("while-counting").stdout)

    assert counted() == CHILDREN
    assert counted("busy", "dlock_acquisition_seconds_count") == taken  # what was kept is its own


def test_a_folder_that_is_taken_away_fails_no_task(folder: Path) -> None:
    done = run("folder-gone")

    assert "PROMETHEUS_MULTIPROC_DIR must name a folder" in done.stderr


def test_what_the_killed_counted_stays_in_their_files(folder: Path) -> None:
    for times in (1, 2):
        run("killed")
        assert counted() == times * CHILDREN
    assert len(list(folder.glob("counter_*.db"))) <= 2, "one of the parent, one of its children"


def test_a_library_that_keeps_its_values_elsewhere_counts(folder: Path) -> None:
    done = run("other-insides")

    assert counted() == CHILDREN
    assert len(list(folder.glob("counter_*.db"))) > 2, "or it is not elsewhere"
    assert "adds files to PROMETHEUS_MULTIPROC_DIR" in done.stderr


@pytest.mark.slow
def test_replaced_children_lose_no_count(folder: Path, make_lab: MakeLab) -> None:
    tasks = 12
    lab = make_lab(celery={"dlock_sinks": ["prometheus"], "worker_max_tasks_per_child": 1})
    with lab.worker(concurrency=2) as worker:
        for number in range(tasks):
            lab.app.tasks["apply"].delay(f"{number}")
        until("all left", lambda: counted("apply", "dlock_hold_seconds_count") >= tasks)
        assert "are lost" not in worker.log

    found = samples(exposition(), "apply")
    assert found["dlock_acquisition_seconds_count"] == found["dlock_hold_seconds_count"] == tasks
    assert len({entry["pid"] for entry in lab.journal.read("end")}) == tasks
    assert len(list(folder.glob("histogram_*.db"))) <= 6
