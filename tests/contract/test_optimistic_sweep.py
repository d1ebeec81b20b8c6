"""Keys that fail, keys that are left behind, and the sweeps that find them."""

from __future__ import annotations

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import Reply
from celery_dlock.stores.consensus.optimistic import Sweeping
from celery_dlock.stores.consensus.record import decode
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from celery_dlock.stores.unreadable import UnreadableKey
from celery_dlock.testing.contract.words import claim, park, running, woken
from tests.contract.memory_rows import RowsBackend
from tests.contract.rows_store import die, flights, later, options, other, store
from tests.services.until import until

__all__ = ("options", "other", "store")  # fixtures


def test_a_message_is_woken_when_the_process_of_the_holder_is_gone(store: RowsBackend) -> None:
    running(store.enter(claim("a", ttl=0.05)))
    park(store, "b")
    die(store)

    until("the waiting task is woken", lambda: woken(store.sweep()) == ["b"])


def test_what_a_process_has_left_behind_is_cleared_away_some_time(
    store: RowsBackend, other: RowsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "celery_dlock.stores.consensus.optimistic.PARTS", 1
    )  # the part of the empty key
    running(store.enter(claim("a", key="")))
    die(store, "")
    assert {name.kind for name in store.rows.shelf.rows} == {Kind.VERSION_ROW}

    monkeypatch.setattr(other._sweeping, "_tidy_at", 0.0)
    other.sweep()

    assert {name.kind for name in store.rows.shelf.rows} == {Kind.VERSION_ROW}
    (version_row,) = store.rows.shelf.rows.values()
    assert decode(version_row.value).holders == ()  # a lost run is remembered for a day


def test_a_failing_key_keeps_no_other(store: RowsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    defects: list[Exception] = []

    def reap(key: str) -> Reply[None]:
        if key == "bad":
            raise defects[-1]
        return store.reap(key)

    for key in ("bad", "good"):
        running(store.enter(claim("a", key=key)))
        park(store, "b", key=key)
        die(store, key)
    later(store, monkeypatch, 20)

    called: list[str] = []
    for defect in (BackendUnavailable("too large"), UnreadableKey("?"), ValueError("a defect")):
        defects.append(defect)
        monkeypatch.setattr(
            store, "_sweeping", Sweeping(store.rows, reap, store._swaps.tidy, store.rows.now)
        )
        swept = store.sweep()
        called += [wake.key for wake in swept.wakes]
        assert swept.next_in != 0  # or the sweeper would never sleep
    assert called == ["good"]

    monkeypatch.undo()
    later(store, monkeypatch, 20)
    assert "bad" in {wake.key for wake in store.sweep().wakes}


def test_a_sweep_says_what_is_away(store: RowsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: str) -> None:
        raise BackendUnavailable("away")

    for key in "abcd":
        running(store.enter(claim("a", key=key)))
        park(store, "b", key=key)
    later(store, monkeypatch, 20)
    monkeypatch.setattr(store._sweeping, "_reap", away)

    with pytest.raises(BackendUnavailable, match="away"):
        store.sweep()


# Notes over rows with optimistic commits: who comes in between, how much goes into one.


def once(store: RowsBackend, act: object) -> None:
    """Let *act* happen before the next commit of *store*, and no more."""

    def before(_: Commit) -> None:
        store.rows.before_commit = lambda _: None
        act()  # type: ignore[operator]

    store.rows.before_commit = before


def test_a_note_costs_two_flights_and_reading_them_four(store: RowsBackend) -> None:
    flights(store)
    assert store.note("key", 5, {"a": b"a", "b": b"b"})
    assert flights(store) == 2

    store.notes("key")
    assert flights(store) == 4


def test_who_meets_a_larger_token_writes_nothing(store: RowsBackend, other: RowsBackend) -> None:
    store.note("key", 5, {"a": b"a"})
    once(store, lambda: other.note("key", 6, {}))

    assert not store.note("key", 5, {"a": b"stale", "b": b"stale"})

    assert store.notes("key") == {"a": b"a"}


def test_who_meets_a_smaller_token_writes_over_it(store: RowsBackend, other: RowsBackend) -> None:
    once(store, lambda: other.note("key", 5, {"a": b"a", "b": b"b"}))

    assert store.note("key", 6, {"a": b"later", "b": None})

    assert store.notes("key") == {"a": b"later"}


def test_a_note_written_during_a_read_is_seen(store: RowsBackend, other: RowsBackend) -> None:
    store.note("key", 5, {"a": b"a"})
    once(store, lambda: other.note("key", 5, {"a": None, "b": b"b"}))

    assert store.notes("key") == {"b": b"b"}


def test_the_first_note_is_seen_by_a_reader(store: RowsBackend, other: RowsBackend) -> None:
    once(store, lambda: other.note("key", 5, {"a": b"a"}))

    assert store.notes("key") == {"a": b"a"}


def test_notes_are_not_in_the_way_of_the_key(store: RowsBackend, other: RowsBackend) -> None:
    once(store, lambda: other.note("key", 5, {"a": b"a"}))
    running(store.enter(claim("a")))
    flights(store)
    store.renew([claim("a")])
    assert flights(store) == 1

    once(store, lambda: other.enter(claim("b")))
    assert store.note("key", 5, {"b": b"b"})
    assert flights(store) == 2


def test_more_than_a_commit_takes_is_written_in_steps(store: RowsBackend) -> None:
    sizes: list[int] = []
    store.rows.after_commit = lambda commit: sizes.append(len(commit.create))

    store.note("key", 5, {f"short {n}": b"" for n in range(201)})
    store.note("key", 5, {f"long {n}": bytes(200_000) for n in range(5)})
    store.note("key", 5, {"longest": bytes(600_000), "short": b""})

    assert sizes == [100, 100, 1, 2, 2, 1, 1, 1]


def test_a_bar_that_cannot_be_read_is_told(store: RowsBackend) -> None:
    store.rows.commit(Commit(Name(Kind.BAR, "key"), None, b"nonsense"))

    with pytest.raises(BackendUnavailable, match="nonsense"):
        store.note("key", 5, {})
