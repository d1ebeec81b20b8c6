"""Labs, and databases for the history; each test has one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_dlock.monitoring.history import HistorySink
from celery_dlock.monitoring.history_reader import HistoryReader
from tests.inspection.conftest import app, clock
from tests.services.databases import own_database
from tests.workers.conftest import a_desk, make_lab, store

__all__ = ["a_desk", "app", "clock", "history", "make_lab", "store", "url"]

Open = Callable[..., tuple[HistorySink, HistoryReader]]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of an empty database: of SQLite's, unless the parameter names a server."""
    server = getattr(request, "param", "sqlite")
    if server == "sqlite":
        yield f"sqlite:///{tmp_path / 'history.db'}"
    else:
        running = request.getfixturevalue(f"{server}_server")
        with own_database(running.url) as made:
            yield made


@pytest.fixture
def history(url: str) -> Iterator[Open]:
    """Opens a sink and a reader for the database, which are closed at the end."""
    with ExitStack() as stack:

        def make(**options: Any) -> tuple[HistorySink, HistoryReader]:
            app = Celery("history", set_as_current=False)
            app.conf.dlock_url = "memory://"
            app.conf.dlock_history = {"url": url, **options}
            sink, reader = HistorySink.from_app(app), HistoryReader.from_app(app)
            stack.callback(reader.close)
            stack.callback(sink.at_exit)
            return sink, reader

        yield make
