"""What the version before has left in a store is there for this one.

Two versions in one deployment that did not read each other's rows would be two locks. The records
were made by ``python -m tests.upgrade`` of that version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.stores.base import NoteStore
from celery_dlock.testing.project import ManualClock
from tests.services.postgresql import PostgresqlServer
from tests.services.redis import RedisServer
from tests.upgrade import stored
from tests.upgrade.story import hear, run

pytestmark = pytest.mark.once


def record(store: str) -> Any:
    return json.loads((stored.RECORDS / f"{store}.json").read_text())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def on_sqlite(tmp_path: Path, clock: ManualClock) -> Iterator[NoteStore]:
    with stored.sqlite(tmp_path, clock, record("sqlite")) as store:
        yield store


@pytest.fixture
def on_redis(own_redis_server: RedisServer, clock: ManualClock) -> Iterator[NoteStore]:
    with stored.on_redis(own_redis_server, clock, record("redis")) as store:
        yield store


@pytest.fixture
def on_postgresql(
    own_postgresql_server: PostgresqlServer, clock: ManualClock
) -> Iterator[NoteStore]:
    with stored.on_postgresql(own_postgresql_server, clock, record("postgresql")) as store:
        yield store


@pytest.fixture
def as_rows(clock: ManualClock) -> Iterator[NoteStore]:
    with stored.as_rows(clock, record("rows")) as store:
        yield store


@pytest.mark.parametrize(
    "store",
    [
        "on_sqlite",
        "as_rows",
        pytest.param("on_redis", marks=pytest.mark.server("redis")),
        pytest.param("on_postgresql", marks=pytest.mark.server("postgresql")),
    ],
)
def test_what_the_version_before_has_left_goes_on(
    request: pytest.FixtureRequest, store: str, clock: ManualClock
) -> None:
    hear(request.getfixturevalue(store), clock)


@pytest.mark.parametrize(
    "store",
    ["on_sqlite", "as_rows", pytest.param("on_redis", marks=pytest.mark.server("redis"))],
)
def test_what_the_version_after_adds_is_left_alone(
    request: pytest.FixtureRequest, store: str, clock: ManualClock
) -> None:
    backend = request.getfixturevalue(store)
    stored.grow(backend)
    hear(backend, clock)


def test_messages_that_it_has_left_run(tmp_path: Path) -> None:
    run(stored.file_of(tmp_path, record("messages")))
