"""Queues of rows: what they cost, and who is reached in them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Outcome,
    WaitMode,
)
from celery_dlock.stores.consensus.record import decode
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from celery_dlock.testing.contract import words
from celery_dlock.testing.contract.words import park, running, woken
from tests.contract.memory_rows import RowsBackend
from tests.contract.rows_store import flights, later, options, store

__all__ = ("options", "store")  # fixtures

#: On a machine with much else to do, the longest of these takes more than ten seconds.
claim = partial(words.claim, ttl=600)


def test_a_long_queue_costs_an_operation_no_more_than_a_short_one(store: RowsBackend) -> None:
    def cost(waiting: int) -> list[int]:
        key = f"{waiting} wait"
        running(store.enter(claim("holder", key=key)))
        park(store, *(f"task {number}" for number in range(waiting)), key=key)
        flights(store)
        counts: list[int] = []
        store.enter(claim("one more", key=key, wait=WaitMode.QUEUE), b"message")
        counts.append(flights(store))
        store.leave(claim("holder", key=key), Outcome.DONE)
        counts.append(flights(store))
        running(store.enter(claim("task 0", key=key)))
        counts.append(flights(store))
        return counts

    assert cost(500) == cost(40) == [3, 4, 3]


def test_who_waits_is_woken_however_many_have_passed_a_task_that_runs(store: RowsBackend) -> None:
    how: dict[str, Any] = {"limit": 2, "wait": WaitMode.QUEUE}
    running(store.enter(claim("long", keep=True, **how), b"its own copy"))
    running(store.enter(claim("0", **how), b"m"))
    store.enter(claim("1", **how), b"m")
    costs: list[int] = []

    for number in range(1, 18 * WINDOW):
        store.enter(claim(f"{number + 1}", **how), b"m")
        flights(store)
        left = store.leave(claim(f"{number - 1}", **how), Outcome.OVER)
        costs.append(flights(store))
        assert woken(left) == [f"{number}"]
        running(store.enter(claim(f"{number}", **how), b"m"))

    assert max(costs) <= 6
    assert woken(store.leave(claim("long", **how), Outcome.OVER)) == [f"{18 * WINDOW}"]


def test_nobody_is_forgotten_whose_page_was_empty_before(store: RowsBackend) -> None:
    running(store.enter(claim("holder")))
    store.enter(claim("first", wait=WaitMode.PLACE))
    stays = [number for number in range(5 * WINDOW) if number % WINDOW in (5, 6)]
    for number in range(5 * WINDOW):
        store.enter(claim(str(number), wait=WaitMode.PLACE))
        store.leave(claim(str(number)), Outcome.OVER)
        if number in stays:
            store.enter(claim(f"stays {number}", wait=WaitMode.PLACE))

    (version_row,) = store.rows.read([Name(Kind.VERSION_ROW, "key")])
    assert version_row is not None
    assert len(decode(version_row.value).gaps) <= len(stays) + 1
    waiting = [entry.task for entry in store.peek("key").waiting]
    assert waiting == ["first", *(f"stays {number}" for number in stays)]


def test_an_operation_clears_no_more_away_than_etcd_takes_at_once(
    store: RowsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 parts, one for each entry and one for each page of the queue."""
    sizes: list[int] = []

    def measure(commit: Commit) -> None:
        changed = [commit.create, commit.update, commit.delete, commit.remember]
        sizes.append(2 + sum(map(len, changed)))

    running(store.enter(claim("holder")))
    for number in range(70):
        store.enter(claim(f"stays {number}", wait=WaitMode.PLACE, patience=3600))
        for other in range(WINDOW - 1):  # so that it has a page of its own
            store.enter(claim(f"{number} {other}", wait=WaitMode.PLACE, patience=3600))
        for other in range(WINDOW - 1):
            store.leave(claim(f"{number} {other}"), Outcome.OVER)
    later(store, monkeypatch, 7200)
    store.rows.before_commit = measure

    while store.peek("key").waiting:
        assert isinstance(store.enter(claim("b")).verdict, Busy)
    assert 64 < max(sizes) <= 128
