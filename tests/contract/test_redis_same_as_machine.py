"""The Lua is held to the Python machine: the same random operations, the same answers."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_dlock.core import operations as operations_of_core
from celery_dlock.core.state import WINDOW
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.stores.redis.scripts import BY_OPERATION
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.sql.sqlite import SqliteBackend
from tests.contract import twin_examples as examples
from tests.contract.twins import (
    Clock,
    Crowd,
    Twin,
    assert_alike,
    crowded,
    crowds,
    operations,
    plain_operations,
)
from tests.services.redis import RedisServer

pytestmark = pytest.mark.server("redis")

Operations = list[tuple[Any, ...]]

_numbers = itertools.count()


def _options(clock: Clock) -> BackendOptions:
    return BackendOptions(prefix=f"twin{next(_numbers)}", clock=clock)


@settings(max_examples=250, deadline=None)
@given(ops=st.lists(operations, min_size=40, max_size=80))
def test_redis_answers_as_the_machine_does(redis_server: RedisServer, ops: Operations) -> None:
    clock = Clock()
    memory = Twin(MemoryBackend(_options(clock)))
    with closing(RedisBackend.from_url(redis_server.url, _options(clock))) as store:
        assert_alike(memory, Twin(store), clock, ops)


def test_each_operation_has_its_script() -> None:
    values = vars(operations_of_core).values()
    kinds = {kind for kind in values if isinstance(kind, type) and "apply" in vars(kind)}
    without_one = {operations_of_core.Operation, operations_of_core.Renew}  # many go at once
    assert set(BY_OPERATION) == kinds - without_one


@settings(max_examples=150, deadline=None)
@given(ops=st.lists(plain_operations, min_size=10, max_size=30))
def test_redis_answers_plain_claims_as_the_machine_does(
    redis_server: RedisServer, ops: Operations
) -> None:
    clock = Clock()
    memory = Twin(MemoryBackend(_options(clock)))
    with closing(RedisBackend.from_url(redis_server.url, _options(clock))) as store:
        assert_alike(memory, Twin(store), clock, ops)


@pytest.mark.parametrize("store_class", [RedisBackend, SqliteBackend])
def test_a_store_answers_as_the_machine_does_where_chance_seldom_goes(
    redis_server: RedisServer, tmp_path: Path, store_class: type[RedisBackend | SqliteBackend]
) -> None:
    url = redis_server.url if store_class is RedisBackend else f"sqlite:///{tmp_path}/twin.db"
    for ops in examples.ALL.values():
        clock = Clock()
        memory = Twin(MemoryBackend(_options(clock)))
        with closing(store_class.from_url(url, _options(clock))) as store:
            assert_alike(memory, Twin(store), clock, ops)


def test_redis_is_as_sqlite_at_a_queues_head(redis_server: RedisServer, tmp_path: Path) -> None:
    for ops in examples.HEADS.values():
        clock = Clock()
        options = _options(clock)
        with (
            closing(SqliteBackend.from_url(f"sqlite:///{tmp_path}/twin.db", options)) as machine,
            closing(RedisBackend.from_url(redis_server.url, options)) as store,
        ):
            assert_alike(Twin(machine), Twin(store), clock, ops)


@settings(max_examples=25, deadline=None)
@given(
    limit=st.sampled_from([1, 3, WINDOW + 10]),
    crowd=crowds(WINDOW + 20),
    ops=st.lists(operations, min_size=10, max_size=40),
)
@example(limit=WINDOW + 10, crowd=examples.CROWD, ops=examples.ALL_FREE_AT_ONCE)
@example(limit=1, crowd=examples.CROWD, ops=examples.FAR_BACK)
def test_redis_answers_as_the_machine_does_when_more_wait_than_it_loads(
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
    limit: int,
    crowd: Crowd,
    ops: Operations,
) -> None:
    clock = Clock()
    file: Path = tmp_path_factory.getbasetemp() / "twin.db"
    with (
        closing(SqliteBackend.from_url(f"sqlite:///{file}", _options(clock))) as sqlite,
        closing(RedisBackend.from_url(redis_server.url, _options(clock))) as store,
    ):
        assert_alike(Twin(sqlite), Twin(store), clock, crowded(limit, crowd, ops))
