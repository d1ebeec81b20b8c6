"""A Redis URL is read when the store is built, without a connection and without a secret told."""

from __future__ import annotations

import traceback
from contextlib import nullcontext
from typing import Any

import pytest
import redis
from redis.connection import SSLConnection

from celery_dlock.errors import ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.redis.client import session_of
from celery_dlock.stores.redis.cluster_session import session_of_cluster
from celery_dlock.stores.redis.sentinel import session_of_sentinels
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.redlock.node import Nodes


def _settings(url: str, **driver: Any) -> dict[str, Any]:
    store = RedisBackend.from_url(url, BackendOptions(driver=driver))
    settings: dict[str, Any] = store._asked().client.connection_pool.connection_kwargs
    return settings


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost", {"host": "localhost"}),
        ("redis://h:7/2", {"host": "h", "port": 7, "db": 2}),
        ("redis://u:p%40ss@h/0", {"username": "u", "password": "p@ss", "db": 0}),
        ("rediss://h:7", {"host": "h", "port": 7}),
        ("valkey://u:p%40ss@h:7/2", {"host": "h", "port": 7, "db": 2, "password": "p@ss"}),
        ("redis+unix:///run/redis.sock?db=3", {"path": "/run/redis.sock", "db": 3}),
    ],
)
def test_a_url_names_host_port_database_and_user(url: str, expected: dict[str, Any]) -> None:
    settings = _settings(url)
    assert {name: settings.get(name) for name in expected} == expected


def test_a_valkey_with_tls_is_spoken_to_with_tls() -> None:
    store = RedisBackend.from_url("valkeys://h", BackendOptions())
    assert store._asked().client.connection_pool.connection_class is SSLConnection


def test_the_store_is_not_waited_for_without_end() -> None:
    settings = _settings("redis://h")
    assert (settings["socket_connect_timeout"], settings["socket_timeout"]) == (2.0, 5.0)


def test_options_and_the_query_override_the_defaults() -> None:
    assert _settings("redis://h", socket_timeout=1)["socket_timeout"] == 1
    assert _settings("redis://h?socket_timeout=9", socket_timeout=1)["socket_timeout"] == 9.0


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/dlock",
        "redis://h/-1",
        "redis://h:port/0",
        "redis://h:99999999/0",
        "redis://:hunter2/x@h/0",
        "redis://:hunter2@[::1/0",
        "redis://u:hunter2@h/0?socket_timeout=soon",
        "redis://u:hunter2@h/0?no_such_option=1",
        "redis://u:hunter2@h/0?retry=5",
        "redis+unix://",
        "redis+unix://u:hunter2@?db=1",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_and_its_password_not_told(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisBackend.from_url(url, BackendOptions())
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="option 'no_such_option'"):
        _settings("redis://h", no_such_option=1)


def test_answers_stay_bytes_whatever_the_options_say() -> None:
    assert _settings("redis://h", decode_responses=True)["decode_responses"] is False


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("rediss://h", {}),
        ("redis+sentinel://h/shop", {"ssl": True}),
        ("redlock://a,b,c", {"connection_class": SSLConnection}),
    ],
)
def test_with_tls_the_name_in_a_certificate_is_checked(url: str, driver: dict[str, Any]) -> None:
    assert _connection(url, driver)["ssl_check_hostname"] is True
    assert _connection(url, {**driver, "ssl_check_hostname": False})["ssl_check_hostname"] is False
    unchecked = {**driver, "ssl_cert_reqs": "none"}
    assert not _connection(url, unchecked).get("ssl_check_hostname")


def _connection(url: str, driver: dict[str, Any]) -> dict[str, Any]:
    """What redis-py is told of each connection."""
    if url.startswith("redlock"):
        return dict(Nodes.of(url, driver, 30).options[0])
    session = (
        session_of_sentinels(url, BackendOptions(driver=driver))
        if "sentinel" in url
        else session_of(url, driver)
    )
    found: dict[str, Any] = session.client.connection_pool.connection_kwargs
    return found


def test_a_cluster_with_tls_is_refused_where_redis_py_checks_no_names() -> None:
    old = int(redis.__version__.split(".")[0]) < 6
    with pytest.raises(ConfigurationError, match="redis 6") if old else nullcontext():
        session_of_cluster("redis+cluster://h", {"ssl": True})
    session_of_cluster("redis+cluster://h", {"ssl": True, "ssl_cert_reqs": "none"})
