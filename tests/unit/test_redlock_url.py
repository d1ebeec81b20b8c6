"""A Redlock URL is read when the store is built, without a connection and without a secret told."""

from __future__ import annotations

import traceback
from contextlib import closing
from typing import Any

import pytest

from celery_dlock.errors import ConfigurationError
from celery_dlock.settings import Settings
from celery_dlock.stores.base import BackendOptions, Guarantee, Trait
from celery_dlock.stores.redlock.node import Nodes
from celery_dlock.stores.redlock.store import RedlockBackend


def places(url: str) -> list[str]:
    return [f"{each['host']}:{each['port']}" for each in Nodes.of(url, {}, 30).options]


def test_a_url_names_the_nodes_and_the_first_has_the_queue() -> None:
    assert places("redlock://a:1,b,C:3/0") == ["a:1", "b:6379", "c:3"]
    assert places("redlock://a,[::1]:7,c") == ["a:6379", "::1:7", "c:6379"]
    assert places("redlock://[::1]:7,[::2],c") == ["::1:7", "::2:6379", "c:6379"]
    assert Nodes.of("redlock://a,b,c", {}, 30).queue == 0


def test_the_query_names_another_node_for_the_queue() -> None:
    assert Nodes.of("redlock://a,b,c:7/1?queue=c:7", {}, 30).queue == 2
    assert Nodes.of("redlock://a,b,c:7?queue=b", {}, 30).queue == 1


def test_all_nodes_have_the_same_user_password_database_and_options() -> None:
    named = Nodes.of("redlock://u:p%40ss@a,b,c/4?socket_timeout=0.2", {"client_name": "shop"}, 30)

    for each in named.options:
        assert (each["username"], each["password"], each["db"]) == ("u", "p@ss", 4)
        assert (each["socket_timeout"], each["client_name"]) == (0.2, "shop")


def test_a_node_is_waited_for_less_long_than_a_redis_of_its_own() -> None:
    named = Nodes.of("redlock://a,b,c", {}, 30)

    assert {each["socket_timeout"] for each in named.options} == {1.0}
    assert Nodes.of("redlock://a,b,c", {"socket_timeout": 2}, 30).options[0]["socket_timeout"] == 2


def test_an_even_number_of_nodes_is_allowed() -> None:
    assert len(places("redlock://a,b,c,d")) == 4


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redlock://a", "at least three"),
        ("redlock://a,b/0", "at least three"),
        ("redlock://a,b,a", "only once"),
        ("redlock://a,b,A:6379", "only once"),
        ("redlock://a,b,c?queue=d", "one of its nodes"),
        ("redlock://a,b,c?queue=a:1", "one of its nodes"),
        ("redlock://a,b,c/first", "number of a database"),
        ("redlock://:hunter2@a,b,", "cannot use"),
        ("redlock://:hunter2@a,b,c:port", "cannot use"),
        ("redlock://:hunter2@a,b,c?no_such_option=1", "cannot use"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_at_once(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        RedlockBackend.from_url(url, BackendOptions())

    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_it_promises_no_strict_fencing() -> None:
    conf: dict[str, Any] = {"dlock_url": "redlock://a,b,c"}
    assert RedlockBackend.guarantee is Guarantee.BEST_EFFORT
    wanted = [Trait.MULTI_PROCESS, Trait.MULTI_HOST, Trait.LEASE_PER_TASK]
    Settings.from_conf({**conf, "dlock_require": wanted}).check(RedlockBackend)

    for trait in (Trait.STRICT_FENCING, Trait.MONOTONE_FENCING):
        settings = Settings.from_conf({**conf, "dlock_require": {trait}})
        with pytest.raises(ConfigurationError, match=f"{trait}, which RedlockBackend lacks"):
            settings.check(RedlockBackend)


@pytest.mark.parametrize(("ttl", "patience"), [(30, 1.0), (2, 0.2), (0.5, 0.05)])
def test_a_node_is_waited_for_as_long_as_a_lease_can_spare(ttl: float, patience: float) -> None:
    options = BackendOptions(ttl=ttl, driver={})
    with closing(RedlockBackend.from_url("redlock://a,b,c", options)) as store:
        assert {node.timeout for node in store._pool().nodes} == {patience}
