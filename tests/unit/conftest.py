"""What several of these tests need: an application, a desk, a store that fails, three beats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from celery import Celery

from celery_dlock.runtime import forget
from celery_dlock.testing import ManualClock, in_memory
from tests.services.beats import Beats, beats
from tests.services.desk import Desk, open_desk
from tests.services.faulty import Faulty
from tests.unit.one_key import OneKey, queued

#: ``make(schedule, **config)``: three beats, none of which leads.
Make = Callable[..., AbstractContextManager[Beats]]


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("unit", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.dlock_url = "memory://"
    yield app
    forget(app)
    app.close()


@pytest.fixture
def clock(app: Celery) -> Iterator[ManualClock]:
    """The clock of the store in memory that the application has for the test."""
    with in_memory(app) as clock:
        yield clock


@pytest.fixture
def key() -> OneKey:
    """A key that a holds."""
    key = OneKey()
    key.enter(queued("a"))
    return key


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_desk() as desk:
        yield desk


@pytest.fixture
def store() -> Iterator[Faulty]:
    store = Faulty()
    yield store
    store.abandon()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda schedule, **config: beats(tmp_path, schedule, **config)
