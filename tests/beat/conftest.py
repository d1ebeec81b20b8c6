"""Beats, a worker and a broker around one lock store."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.beat.crew import Crew, worker
from tests.beat.entries import ENTRIES
from tests.beat.ways import Kind, Ways, open_ways
from tests.services.beat_entries import Entry
from tests.services.brokers import over_folder, over_redis
from tests.services.django_rows import Make, around_rows
from tests.services.require import require
from tests.services.worker import Worker

#: ``make(kind, ttl)``: three beats that run, the ways to their store, and their worker. By
#: *beats*, *entries* and *celery* they are fewer, have another schedule, and other settings.
MakeCrew = Callable[..., tuple[Crew, Ways, Worker]]


@pytest.fixture
def make_crew(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeCrew]:
    """With the store Redis the broker is another Redis, and else the one in a folder."""

    def make(
        kind: Kind,
        ttl: float,
        *,
        beats: int = 3,
        entries: Sequence[Entry] = ENTRIES,
        **celery: Any,
    ) -> tuple[Crew, Ways, Worker]:
        if kind.server:
            require(kind.server)
        if kind.name == "redis":
            broker = over_redis(request.getfixturevalue("redis_server").port)
        else:
            broker = over_folder(tmp_path)
        ways = stack.enter_context(open_ways(kind, tmp_path, beats))
        settings: dict[str, Any] = {
            **broker,
            **celery,
            "dlock_ttl": ttl,
            "dlock_key_prefix": uuid.uuid4().hex,
        }
        crew = Crew(tmp_path, settings, ways.urls, entries)
        stack.callback(lambda: sys.stderr.write(crew.logs()))  # shown of a test that failed
        stack.callback(crew.kill)
        crew.start()
        runs = stack.enter_context(worker(tmp_path, {**settings, "dlock_url": ways.direct}))
        return crew, ways, runs

    with ExitStack() as stack:
        yield make


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Three beats around a database of Django without a row."""
    with around_rows(tmp_path, monkeypatch) as make:
        yield make
