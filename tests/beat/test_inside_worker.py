"""A beat inside a worker (``-B``), beside one that stands by."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beat.crew import PATIENCE, Crew
from tests.beat.evidence import terms
from tests.services.beat import APP
from tests.services.brokers import over_folder
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Seconds. It is renewed each third, so two of them are left at least.
TTL = 90.0


class WithBeat(Worker):
    """A worker that is a beat, too, configured as the beat *name* of the same folder is."""

    def __init__(self, folder: Path, name: str) -> None:
        config = json.loads((folder / f"{name}.json").read_text())
        super().__init__(folder, {**config, "name": "inside"}, "inside", "threads", 2, APP)
        schedule = str(folder / "inside.schedule")
        self._command += ["-B", "--scheduler", "dlock", "--schedule", schedule]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Of one beat, which is not started."""
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    made = Crew(tmp_path, {**over_folder(tmp_path), "dlock_ttl": TTL}, [url])
    yield made
    made.kill()


def test_it_leads_as_any_other_until_its_worker_stops(crew: Crew, tmp_path: Path) -> None:
    (other,) = crew.beats
    with WithBeat(tmp_path, other.name) as worker:
        until("it leads", lambda: [t.beat for t in terms(crew.journal)] == ["inside"], PATIENCE)
        other.start()
        crew.settle()

        at = time.monotonic()
        worker.stop(timeout=PATIENCE)
        assert crew.new_leader() is other
        assert time.monotonic() - at < TTL * 2 / 3
