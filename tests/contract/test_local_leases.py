"""A holder's row that nobody renews is given up, whenever it came to be there."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from celery_dlock.core.state import (
    Busy,
    End,
    Ending,
    NotHeld,
    Outcome,
    Park,
    Renewed,
    Replaced,
    Run,
    WaitMode,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus import local_leases
from celery_dlock.stores.consensus.local_leases import LocalLeases
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from celery_dlock.testing.contract.words import claim, running
from tests.contract.memory_rows import RowsBackend
from tests.contract.rows_store import flights, lost, options, other, store
from tests.services.forked import in_a_forked_child
from tests.services.until import until

__all__ = ("options", "other", "store")  # fixtures

A, SHORT = claim("a"), claim("a", ttl=0.05)


def until_free(store: RowsBackend, key: str = "key") -> None:
    """The lease ends, and the key is another's."""
    until("it is free", lambda: isinstance(store.enter(claim("b", key=key)).verdict, Run))


def watched(store: RowsBackend) -> set[Name]:
    """The rows that the process gives up if they are not renewed."""
    return set(store._own().leases._ends)


def test_a_lock_that_is_not_renewed_is_given_up_by_its_process(store: RowsBackend) -> None:
    running(store.enter(SHORT))

    until_free(store)

    assert store.renew([SHORT]) == [NotHeld()]


def test_a_lease_goes_on_ending_while_the_host_sleeps(
    store: RowsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_leases, "PAUSE", 0.01)
    awake = time.clock_gettime
    running(store.enter(claim("a", ttl=600)))

    monkeypatch.setattr(
        time, "clock_gettime", lambda clock: awake(clock) + 3600 * (clock == time.CLOCK_BOOTTIME)
    )

    until_free(store)


def test_a_lock_that_is_renewed_stays(store: RowsBackend) -> None:
    short, mine = claim("short", key="short", ttl=2), claim("a", ttl=1)
    running(store.enter(mine))
    running(store.enter(short))

    def renewed_until_the_other_has_ended() -> bool:
        (verdict,) = store.renew([mine])
        assert isinstance(verdict, Renewed)
        return not store.rows.alive([Name(Kind.HOLDER, "short", short.owner)], 0)[0]

    until("the lock beside it has ended", renewed_until_the_other_has_ended)
    assert isinstance(store.enter(claim("b")).verdict, Busy)


NEWEST: dict[str, Any] = {"wait": WaitMode.QUEUE, "gives_way": True, "supersedes": True}


def test_one_that_is_asked_to_give_way_is_told(store: RowsBackend, other: RowsBackend) -> None:
    first, newest = claim("a", ttl=0.5, **NEWEST), claim("b", **NEWEST)
    running(store.enter(first, b"a"))
    assert isinstance(store.renew([first])[0], Renewed)

    other.enter(newest, b"b")

    def newest_runs() -> bool:
        assert store.renew([first])[0] in (Replaced("b"), NotHeld())
        return isinstance(other.enter(newest, b"b").verdict, Run)

    until("its lease has ended", newest_runs)
    assert other.enter(claim("a", "2", **NEWEST), b"a").verdict == End(Ending.DROPPED, "b")


def test_only_who_gives_way_is_asked_for_with_one_flight_more(store: RowsBackend) -> None:
    first, plain = claim("a", **NEWEST), claim("c", key="c")
    for mine in (first, plain):
        running(store.enter(mine, b"m"))

    for claims, cost in (([plain], 1), ([first, plain], 2)):
        flights(store)
        assert all(isinstance(verdict, Renewed) for verdict in store.renew(claims))
        assert flights(store) == cost


def test_a_request_whose_reply_was_lost_holds_for_its_lease(store: RowsBackend) -> None:
    with lost(store, "after_commit"):
        store.enter(SHORT)
    assert [holder.task for holder in store.peek("key").holders] == ["a"]

    until_free(store)


def test_a_lease_that_has_ended_cannot_be_renewed_while_it_is_being_given_up(
    store: RowsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, asked = threading.Event(), threading.Event()
    drop = store.rows.drop

    def drop_later(row: Name) -> None:
        asked.set()
        if not away.is_set():
            raise BackendUnavailable("not now")
        drop(row)

    monkeypatch.setattr(store._own().leases, "_drop", drop_later)
    running(store.enter(SHORT))
    asked.wait()

    assert store.rows.alive([Name(Kind.HOLDER, "key", "a|1")], 0) == [True]
    assert store.renew([SHORT]) == [NotHeld()]
    with pytest.raises(BackendUnavailable, match="'key' has expired, and is not yet released"):
        store.enter(SHORT)
    away.set()
    until_free(store)


def test_a_request_that_lands_late_holds_for_its_lease(store: RowsBackend) -> None:
    with lost(store, "before_commit") as late:
        store.enter(SHORT)
    assert store.leave(SHORT, Outcome.OVER).verdict == NotHeld()
    assert store.rows.commit(late[0]) is not None

    until_free(store)


def test_a_request_that_lands_when_its_time_has_passed_does_not_stay(store: RowsBackend) -> None:
    def wait(_: Commit) -> None:
        store.rows.before_commit = lambda _: None
        until("its time has passed", lambda: not store._own().leases._ends)

    store.rows.before_commit = wait
    running(store.enter(claim("a", ttl=0.01)))
    assert store.renew([claim("a", ttl=0.01)]) == [NotHeld()]

    until_free(store)


def test_a_lock_that_was_renewed_for_longer_is_not_given_up_before(store: RowsBackend) -> None:
    running(store.enter(claim("a", ttl=10)))
    assert isinstance(store.renew([claim("a", ttl=600)])[0], Renewed)

    assert isinstance(store.renew([SHORT])[0], Renewed)

    running(store.enter(claim("b", key="other", ttl=0.1)))
    free = claim("c", key="other")
    until("a later lease has ended", lambda: isinstance(store.enter(free).verdict, Run))
    assert isinstance(store.renew([claim("a")])[0], Renewed)
    for mine in (claim("a"), free):
        store.leave(mine, Outcome.OVER)


def test_a_thread_that_cannot_be_started_is_started_the_next_time(
    store: RowsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strike(_: threading.Thread) -> None:
        raise TimeoutError("a soft time limit")

    monkeypatch.setattr(threading.Thread, "start", strike)
    with pytest.raises(TimeoutError):
        store.enter(SHORT)
    monkeypatch.undo()
    running(store.enter(SHORT))

    until_free(store)


def test_the_thread_that_watches_ends_when_there_is_nothing_to_watch(store: RowsBackend) -> None:
    running(store.enter(A))
    store.leave(A, Outcome.OVER)

    until("no thread is left", lambda: store._own().leases._thread is None)


def test_who_does_not_get_the_key_has_nothing_to_give_up(
    store: RowsBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A publisher asks for a turn: its lease would be over before it began."""
    running(store.enter(A))
    mine, expected = {Name(Kind.HOLDER, "key", "a|1")}, set[Name]()
    for task in "bcd":
        assert isinstance(store.enter(claim(task)).verdict, Busy)
    assert watched(store) == mine
    assert store._own().leases._expired == {}

    store.rows.before_commit = lambda _: expected.update(watched(store))
    for task in map(str, range(20)):
        reply = store.enter(claim(task, "", ttl=0, wait=WaitMode.ENQUEUE), b"b")
        assert isinstance(reply.verdict, Park)

    assert expected == mine
    assert caplog.records == []
    store.close()
    assert watched(store) == set()


def test_only_of_a_lock_that_was_granted_the_log_says_that_it_was_not_renewed(
    store: RowsBackend, caplog: pytest.LogCaptureFixture
) -> None:
    with lost(store, "after_commit"):
        store.enter(claim("a", key="asked", ttl=0.05))
    running(store.enter(claim("a", key="granted", ttl=0.05)))

    for key in ("asked", "granted"):
        until_free(store, key)

    (record,) = (r for r in caplog.records if r.levelname == "WARNING")
    assert "'granted' was not renewed in time" in record.getMessage()


def test_while_the_store_is_away_one_row_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot reach its store for an hour has tried to take many a key."""
    monkeypatch.setattr(local_leases, "PAUSE", 0.01)
    rows = [Name(Kind.HOLDER, f"key {n}", "a|1") for n in range(3)]
    clock, looks, tried = [0.0], [0], list[tuple[int, Name]]()

    def monotonic() -> float:
        looks[0] += 1
        return clock[0]

    def drop(row: Name) -> None:
        tried.append((looks[0], row))
        if len(tried) <= len(rows):
            raise BackendUnavailable("away")

    watched = LocalLeases(drop, monotonic)
    for row in rows:
        watched.expect(row, 1_000_000)
    clock[0] = 2.0

    until("all are given up", lambda: len(tried) == 2 * len(rows))
    away, back = tried[: len(rows)], tried[len(rows) :]
    assert len({look for look, _ in away}) == len(rows)
    assert {row for _, row in away} == {row for _, row in back} == set(rows)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_rows_of_its_own_to_watch_over(store: RowsBackend) -> None:
    running(store.enter(claim("a")))
    parents = store._own().leases

    def child() -> None:
        store.close()  # of the parent's it would have to wait for the thread that is not here
        running(store.enter(claim("b", key="other")))
        assert watched(store) == {Name(Kind.HOLDER, "other", "b|1")}

    with parents._mutex:  # that thread is looking
        in_a_forked_child(child)

    assert watched(store) == {Name(Kind.HOLDER, "key", "a|1")}
