"""Notes over rows with optimistic commits: who comes in between, how much goes into one."""

from __future__ import annotations

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from celery_dlock.testing.contract.words import claim, running
from tests.contract.memory_rows import RowsBackend
from tests.contract.rows_store import flights, options, other, store

__all__ = ("options", "other", "store")  # fixtures


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


def test_who_is_overtaken_by_a_larger_token_writes_nothing(
    store: RowsBackend, other: RowsBackend
) -> None:
    store.note("key", 5, {"a": b"a"})
    once(store, lambda: other.note("key", 6, {}))

    assert not store.note("key", 5, {"a": b"stale", "b": b"stale"})

    assert store.notes("key") == {"a": b"a"}


def test_who_is_overtaken_by_a_smaller_token_writes_over_it(
    store: RowsBackend, other: RowsBackend
) -> None:
    once(store, lambda: other.note("key", 5, {"a": b"a", "b": b"b"}))

    assert store.note("key", 6, {"a": b"later", "b": None})

    assert store.notes("key") == {"a": b"later"}


def test_what_is_written_while_notes_are_read_is_seen(
    store: RowsBackend, other: RowsBackend
) -> None:
    store.note("key", 5, {"a": b"a"})
    once(store, lambda: other.note("key", 5, {"a": None, "b": b"b"}))

    assert store.notes("key") == {"b": b"b"}


def test_the_first_note_of_all_is_seen_by_who_reads_meanwhile(
    store: RowsBackend, other: RowsBackend
) -> None:
    once(store, lambda: other.note("key", 5, {"a": b"a"}))

    assert store.notes("key") == {"a": b"a"}


def test_notes_are_not_in_the_way_of_the_key_nor_it_in_theirs(
    store: RowsBackend, other: RowsBackend
) -> None:
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
