"""What a worker leaves in the history when its processes end, or are killed, or fork."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.monitoring.history_reader import HistoryReader
from celery_dlock.runtime import forget
from tests.monitoring.conftest import Open
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import embedded

MakeLab = Callable[..., tuple[Lab, HistoryReader]]

TASKS = 8


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[MakeLab]:
    """A lab without a server, with a history, and the reader of that."""
    made: list[tuple[Lab, HistoryReader]] = []

    def make(**celery: Any) -> tuple[Lab, HistoryReader]:
        kept = {"dlock_history": f"sqlite:///{tmp_path / 'history.db'}"}
        lab = Lab(tmp_path, {"celery": {**embedded(tmp_path), **kept, **celery}})
        made.append((lab, HistoryReader.from_app(lab.app)))
        return made[-1]

    yield make
    for lab, reader in made:
        reader.close()
        forget(lab.app)


def happened(reader: HistoryReader) -> Counter[tuple[str, str]]:
    return Counter((entry.event, entry.task_id) for entry in reader.recent(1000))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_nothing_is_missing_after_a_worker_has_shut_down(make_lab: MakeLab, pool: str) -> None:
    lab, reader = make_lab(imports=["tests.services.kept_back"])

    with lab.worker(pool) as worker:
        sent = [lab.app.tasks["apply"].delay(f"{number}") for number in range(TASKS)]
        lab.journal.wait_for("end", count=TASKS)
        assert worker.stop() == 0

    found = happened(reader)
    for result in sent:
        assert found["Acquired", result.id] == found["Released", result.id] == 1


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "gevent", "eventlet"])
def test_what_was_written_stays_when_a_worker_is_killed(make_lab: MakeLab, pool: str) -> None:
    lab, reader = make_lab()
    apply = lab.app.tasks["apply"]

    with lab.worker(pool) as worker:
        done = apply.delay("1")
        until("its end is known", lambda: happened(reader)["Released", done.id])
        running = apply.delay("2", hold="never")
        until("its start is known", lambda: happened(reader)["Acquired", running.id])

        worker.kill()
    with lab.worker(pool):
        after = apply.delay("3")
        until("the next end is known", lambda: happened(reader)["Released", after.id])

    found = happened(reader)
    assert found["Acquired", done.id] == found["Released", done.id] == 1
    assert found["Acquired", running.id] >= 1
    assert found["Acquired", after.id] == 1


FORKS = """
import os, sys
from celery_dlock.core.events import Dropped, Subject
from celery_dlock.monitoring import batching, history
from celery_dlock.settings import HistoryOptions

def tell(who):
    sink(Dropped(Subject(who, "task", "label"), "key", "done"))

sink = history.HistorySink(HistoryOptions(sys.argv[1]))
tell("written before")
sink.flush(60)
sink.gather = 3600.0
sink.exit_timeout = 60.0
tell("waits as it forks")
child = os.fork()
tell("child" if child == 0 else "parent")
if child == 0:
    batching.end()
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    "url",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.server("postgresql"))],
    indirect=True,
)
def test_a_forked_child_writes_its_own_events(url: str, history: Open) -> None:
    _, reader = history()

    subprocess.run([sys.executable, "-c", FORKS, url], check=True, timeout=120)

    told = sorted(entry.task_id for entry in reader.of_key("key"))
    assert told == ["child", "parent", "waits as it forks", "written before"]
