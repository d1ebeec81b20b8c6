"""``dlock_wait_replicas``: read as a number or a dict, and refused where there are no replicas."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_dlock.errors import ConfigurationError
from celery_dlock.settings import Settings
from celery_dlock.stores.base import Copies, LockBackend
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.stores.redis.cluster import RedisClusterBackend
from celery_dlock.stores.redis.sentinel import RedisSentinelBackend
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.sql.sqlite import SqliteBackend


def read(value: Any) -> Settings:
    app = Celery("shop", set_as_current=False)
    app.conf.update(dlock_url="redis://h", dlock_wait_replicas=value)
    return Settings.from_conf(app.conf)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (2, Copies(2)),
        ({"replicas": 1}, Copies(1)),
        ({"replicas": 2, "timeout": 0.5}, Copies(2, timeout=0.5)),
    ],
)
def test_it_says_where_a_hold_has_to_be(value: Any, expected: Copies | None) -> None:
    assert read(value).options.copies == expected


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, True, "1", 1.0),
        *({}, {"replicas": 0}, {"replica": 1}, {"replicas": 1, "aof": True}),
        *({"replicas": 1, "timeout": 0}, {"replicas": 1, "timeout": "soon"}),
    ],
)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="dlock_wait_replicas"):
        read(value)


@pytest.mark.parametrize("store", [RedisBackend, RedisSentinelBackend, RedisClusterBackend])
def test_stores_with_replicas_take_it(store: type[LockBackend]) -> None:
    read(1).check(store)


@pytest.mark.parametrize("store", [MemoryBackend, SqliteBackend])
def test_stores_without_replicas_are_refused(store: type[LockBackend]) -> None:
    with pytest.raises(ConfigurationError, match="dlock_wait_replicas is for replicas of Redis"):
        read(1).check(store)
    read(None).check(store)
