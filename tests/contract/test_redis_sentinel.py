"""The store on a Redis master that Sentinels watch over."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from redis.connection import SSLConnection

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.redis.sentinel import RedisSentinelBackend
from celery_dlock.testing.contract import NoteStoreContract, SharedStoreContract
from celery_dlock.testing.contract.words import claim, running
from tests.services.redis_sentinel import RedisSentinel

pytestmark = pytest.mark.server("redis")


class TestRedisSentinel(SharedStoreContract, NoteStoreContract):
    backend_class = RedisSentinelBackend

    @pytest.fixture
    def url(self, redis_sentinel: RedisSentinel) -> str:
        return redis_sentinel.url


def test_an_answer_that_is_late_is_not_taken_for_that_of_the_next_command(
    own_redis_sentinel: RedisSentinel,
) -> None:
    options = BackendOptions(driver={"socket_timeout": 0.2})
    with closing(RedisSentinelBackend.from_url(own_redis_sentinel.url, options)) as store:
        store.peek("key")
        master = own_redis_sentinel.master
        master.pause()  # for less time than a Sentinel gives it
        with pytest.raises(BackendUnavailable):
            store.enter(claim("late", key="late"))
        threading.Timer(0.1, master.resume).start()

        token = running(store.enter(claim("next", key="next"))).token

        assert [holder.token for holder in store.peek("next").holders] == [token]


@pytest.mark.parametrize("ssl", [False, True])
def test_the_url_names_the_sentinels_the_master_and_the_database(ssl: bool) -> None:
    url, options = "redis+sentinel://u:p%40ss@h1,h2:7/shop/3", BackendOptions(driver={"ssl": ssl})
    pool = RedisSentinelBackend.from_url(url, options)._session().client.connection_pool
    assert pool.service_name == "shop"
    kwargs = [
        sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels
    ]
    assert [(each["host"], each["port"]) for each in kwargs] == [("h1", 26379), ("h2", 7)]
    expected = {"username": "u", "password": "p@ss", "db": 3, "socket_timeout": 5.0}
    assert {name: pool.connection_kwargs[name] for name in expected} == expected
    assert issubclass(pool.connection_class, SSLConnection) is ssl


def test_sentinels_have_a_user_and_timeouts_of_their_own() -> None:
    driver = {"sentinel_kwargs": {"username": "s", "password": "hunter2"}, "password": "p"}
    store = RedisSentinelBackend.from_url("redis+sentinel://h/shop", BackendOptions(driver=driver))
    (sentinel,) = store._session().client.connection_pool.sentinel_manager.sentinels
    kwargs = sentinel.connection_pool.connection_kwargs
    expected = {"username": "s", "password": "hunter2", "socket_timeout": 1.0}
    assert {name: kwargs[name] for name in expected} == expected
