"""A list of the keys on a Redis that has many other names, and other people's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from celery_dlock.core.state import Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.redis import listing
from celery_dlock.testing.contract.words import claim, listed_keys, park, running
from tests.contract.redis_store import requests_sent, store_on
from tests.services.redis import RedisServer


def test_for_a_page_ten_thousand_names_are_looked_at_and_no_more() -> None:
    for limit in (1, 100, 100_000):
        asked: list[int] = []

        def step(at: int, count: int, asked: list[int] = asked) -> tuple[int, list[bytes]]:
            asked.append(count)
            return at + count, []

        assert listing.walk(step, "dlock", 7, limit) == ([], 10_007)
        assert sum(asked) == 10_000
        assert len(asked) <= 12


def test_where_keys_are_few_among_many_names_a_page_is_not_much_too_long() -> None:
    def step(at: int, count: int) -> tuple[int, list[bytes]]:
        names = [f"dlock:1:{{1}}:{{{n}}}:state" for n in range(at, at + count) if n % 10 == 0]
        return at + count, [name.encode() for name in names]

    keys, at = listing.walk(step, "dlock", 0, 100)

    assert keys == [f"{n}" for n in range(0, at, 10)]
    assert 100 <= len(keys) <= 110


@pytest.mark.server("redis")
def test_keys_are_found_among_many_names_of_others(own_redis_server: RedisServer) -> None:
    with store_on(own_redis_server) as store:
        names: dict[Any, Any] = {f"somebody's {n}": "value" for n in range(25_000)}
        store.client.mset(names)
        keys = [f"key {n}" for n in range(5)]
        for key in keys:
            running(store.backend.enter(claim("a", key=key)))

        found, pages = list[str](), 0
        cursor: str | None = ""
        while cursor is not None:
            page = store.backend.keys(cursor)
            found += page.keys
            pages, cursor = pages + 1, page.cursor

        assert sorted(found) == keys
        assert pages >= 3


@pytest.mark.server("redis")
def test_a_name_that_looks_like_a_key_and_is_none_is_not_told(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        running(store.backend.enter(claim("a:state", key="key")))
        store.backend.leave(claim("a:state", key="key"), Outcome.DONE)
        assert any(name.endswith(":done:a:state") for name in store.lying())
        ours = f"{store.prefix}:1:"
        for name in ("{5}:{\xff}:state", "{x}:{key}:state", "{5x}:{key}:state", "{5}:{k}:queue"):
            store.client.set(ours.encode() + name.encode("latin-1"), "value")

        assert listed_keys(store.backend) == []


@pytest.mark.server("redis")
def test_an_unreadable_key_is_told_and_fails_a_look(redis_server: RedisServer) -> None:
    with store_on(redis_server) as store:
        for key in ("good", "bad"):
            running(store.backend.enter(claim("a", key=key)))
        store.client.set(store.names("bad")[0], "garbage")

        assert listed_keys(store.backend) == ["bad", "good"]
        assert store.backend.look(["good"])[0].holders
        with pytest.raises(BackendUnavailable):
            store.backend.look(["good", "bad"])


@pytest.mark.server("redis")
def test_who_waits_is_listed_and_looked_at_in_one_trip(redis_server: RedisServer) -> None:
    keys = [f"key {n}" for n in range(100)]
    with store_on(redis_server) as store:
        for key in keys:
            running(store.backend.enter(claim("a", key=key)))
            park(store.backend, "b", key=key)
        store.backend.look(keys)
        store.backend.keys(waiting=True)  # opens a connection

        with store.counted() as cost:
            assert sorted(store.backend.keys(waiting=True).keys) == sorted(keys)
        assert cost.commands == Counter(zscan=64)
        with store.counted() as cost:
            assert all(state.parked == 1 for state in store.backend.look(keys))
        assert cost.commands == Counter(evalsha=1, time=1, get=100, zrange=100)
        with requests_sent() as sent:  # the server reads a long one in several parts
            store.backend.keys(waiting=True)
            store.backend.look(keys)
        assert sum(sent.values()) == 2
