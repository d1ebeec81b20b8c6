"""Keys that fail, keys that are left behind, and the sweeps that find them."""

from __future__ import annotations

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import Reply
from celery_dlock.stores.consensus.optimistic import Sweeping
from celery_dlock.stores.consensus.record import decode
from celery_dlock.stores.consensus.rows import Kind
from celery_dlock.stores.unreadable import UnreadableKey
from celery_dlock.testing.contract.words import claim, park, running, woken
from tests.contract.memory_rows import RowsBackend
from tests.contract.rows_store import die, later, options, other, store
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


def test_a_key_that_fails_does_not_keep_the_others_waiting(
    store: RowsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_sweep_of_a_store_that_is_away_says_so(
    store: RowsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: str) -> None:
        raise BackendUnavailable("away")

    for key in "abcd":
        running(store.enter(claim("a", key=key)))
        park(store, "b", key=key)
    later(store, monkeypatch, 20)
    monkeypatch.setattr(store._sweeping, "_reap", away)

    with pytest.raises(BackendUnavailable, match="away"):
        store.sweep()
