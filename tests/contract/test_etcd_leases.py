"""On what a holder's row hangs in etcd, for how long, and what that costs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from celery_dlock.stores.etcd.client import LeaseGone
from celery_dlock.stores.etcd.store import EtcdRows
from celery_dlock.testing.contract.words import at_once
from tests.contract.etcd_store import counted, rows_at
from tests.services.etcd import EtcdServer
from tests.services.until import until

pytestmark = pytest.mark.server("etcd")

SECOND = 1_000_000


@pytest.fixture
def rows(own_etcd_server: EtcdServer) -> Iterator[EtcdRows]:
    with rows_at(own_etcd_server.url) as rows:
        rows.read([Name(Kind.VERSION_ROW, "warm")])
        yield rows


def hold(rows: EtcdRows, key: str, lease: int) -> Name:
    holder = Name(Kind.HOLDER, key, "task|nonce")
    commit = Commit(Name(Kind.VERSION_ROW, key), None, b"", held=(holder, b"mine"), lease=lease)
    assert rows.commit(commit)
    return holder


def seconds_left(server: EtcdServer) -> list[tuple[int, int]]:
    """Of each lease: for how long it was granted, and how much of that is left."""
    found = server.ask("lease/leases").get("leases", [])
    lives = [server.ask("lease/timetolive", ID=each["ID"]) for each in found]
    told = [life for life in lives if "grantedTTL" in life]  # one may have ended just now
    return sorted((int(life["grantedTTL"]), int(life.get("TTL", 0))) for life in told)


def test_a_lease_is_granted_for_a_third_more(rows: EtcdRows, own_etcd_server: EtcdServer) -> None:
    hold(rows, "a", 30 * SECOND)
    hold(rows, "b", 31 * SECOND)
    hold(rows, "c", SECOND // 2)

    assert [granted for granted, _ in seconds_left(own_etcd_server)] == [2, 40, 42]


def test_one_lease_serves_all_of_the_same_time(rows: EtcdRows, own_etcd_server: EtcdServer) -> None:
    with counted(own_etcd_server) as cost:
        at_once(8, lambda number: hold(rows, f"thread {number}", 30 * SECOND))
        for number in range(20):
            hold(rows, f"key {number}", 30 * SECOND)

    assert cost == {"LeaseGrant": 1, "Txn": 28}
    assert len(rows.names(Kind.HOLDER)) == 28


def test_a_lease_is_prolonged_once_in_a_third(rows: EtcdRows, own_etcd_server: EtcdServer) -> None:
    began, number = time.monotonic(), 0
    with counted(own_etcd_server) as cost:
        while time.monotonic() < began + 3.3:  # granted for four seconds: each lasts for one more
            hold(rows, f"key {number}", 3 * SECOND)
            number += 1

    assert cost["LeaseGrant"] == 1
    assert cost["LeaseKeepAlive"] in (2, 3)
    assert cost["Txn"] == number
    assert len(rows.names(Kind.HOLDER)) == number


def test_a_row_lasts_for_its_lease_from_before_it_was_asked_for(
    rows: EtcdRows, own_etcd_server: EtcdServer
) -> None:
    hold(rows, "first", 3 * SECOND)
    passed = time.monotonic() + 0.9
    until("the lease is nearly due", lambda: time.monotonic() > passed)

    asked = time.monotonic()
    holder = hold(rows, "second", 3 * SECOND)

    until("it is gone", lambda: rows.read([holder]) == [None])
    assert 3 <= time.monotonic() - asked < 6


def test_an_idle_process_gets_another_lease(rows: EtcdRows, own_etcd_server: EtcdServer) -> None:
    hold(rows, "a", SECOND)
    until("the first lease has ended", lambda: not seconds_left(own_etcd_server))

    holder = hold(rows, "b", SECOND)

    assert rows.alive([holder], SECOND) == [True]


def test_a_lost_lease_is_replaced_in_a_commit(rows: EtcdRows, own_etcd_server: EtcdServer) -> None:
    old = hold(rows, "a", 30 * SECOND)
    done = Name(Kind.DONE, "a", "task")
    other = Name(Kind.VERSION_ROW, "other")
    rows.commit(Commit(other, None, None, remember={done: (b"", 60 * SECOND)}))
    for lease in own_etcd_server.ask("lease/leases")["leases"]:
        own_etcd_server.ask("lease/revoke", ID=lease["ID"])

    holder = Name(Kind.HOLDER, "b", "task|nonce")
    commit = Commit(
        Name(Kind.VERSION_ROW, "b"), None, b"", held=(holder, b"new"), lease=30 * SECOND
    )
    commit.remember = {done: (b"new", 60 * SECOND)}
    assert rows.commit(commit) is not None

    assert rows.alive([old, holder], 30 * SECOND) == [False, True]
    assert [row and row.value for row in rows.read([done, holder])] == [b"new", b"new"]


def test_a_server_that_comes_back_empty_is_used_again_and_nothing_is_held(
    rows: EtcdRows, own_etcd_server: EtcdServer
) -> None:
    for key in "abc":
        old = hold(rows, key, 30 * SECOND)

    own_etcd_server.kill()
    own_etcd_server.wipe()
    own_etcd_server.start()

    assert until("it answers", lambda: _told(rows, old)) == [False]
    new = hold(rows, "c", 30 * SECOND)
    assert rows.alive([new], 30 * SECOND) == [True]


@pytest.mark.slow
@pytest.mark.parametrize("bumped", [False, True], ids=["as it was", "with a larger revision"])
def test_a_row_that_a_backup_brings_back_ends_although_its_process_goes_on(
    rows: EtcdRows, own_etcd_server: EtcdServer, bumped: bool
) -> None:
    lease = 6 * SECOND  # longer than an outage
    # Given one lock that is held now, and one that was released after the backup
    runs, ended = hold(rows, "runs", lease), hold(rows, "ended", lease)
    own_etcd_server.back_up()
    until("it answers", lambda: _told(rows, runs))
    rows.drop(ended)
    for _ in range(20):
        rows.drop(hold(rows, uuid.uuid4().hex, lease))
    assert not rows.lost_data()

    own_etcd_server.restore()
    if bumped:
        for _ in range(100):
            own_etcd_server.ask("kv/put", key="AAAA", value="AAAA")
        own_etcd_server.restart()  # the copy is of the term before

    until("it answers", lambda: _told(rows, runs))
    assert [row is not None for row in rows.read([runs, ended])] == [True, True]
    assert rows.lost_data() is not bumped
    assert not rows.lost_data()

    def only_the_first_is_left() -> bool:
        hold(rows, uuid.uuid4().hex, lease)
        assert rows.alive([runs], lease) == [True]
        return rows.read([ended]) == [None]

    until("the other one has ended", only_the_first_is_left, timeout=30)


def _told(rows: EtcdRows, holder: Name) -> list[bool] | None:
    try:
        return rows.alive([holder], SECOND)
    except BackendUnavailable:
        return None


def test_a_row_that_may_land_late_hangs_on_a_lease_that_is_left_to_end(
    rows: EtcdRows, own_etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit whose fate is unknown: nobody will renew its row, nor should others keep it."""
    kept = hold(rows, "kept", 3 * SECOND)
    client = rows._session.client
    call = client.call

    def lose(name: str, *args: Any, **how: Any) -> Any:
        answer = call(name, *args, **how)
        if name == "Txn":
            raise BackendUnavailable("the reply was lost")
        return answer

    with monkeypatch.context() as lost:
        lost.setattr(client, "call", lose)
        with pytest.raises(BackendUnavailable):
            hold(rows, "late", 3 * SECOND)
    late = Name(Kind.HOLDER, "late", "task|nonce")

    def only_the_kept_is_left() -> bool:
        assert rows.alive([kept], 3 * SECOND) == [True]
        return rows.read([late]) == [None]

    until("the late row has ended", only_the_kept_is_left)


def test_who_is_alive_costs_two_calls(rows: EtcdRows, own_etcd_server: EtcdServer) -> None:
    holders = [hold(rows, f"key {number}", 3 * SECOND) for number in range(100)]
    passed = time.monotonic() + 1.5
    until("the lease is to be prolonged", lambda: time.monotonic() > passed)

    with counted(own_etcd_server) as cost:
        assert rows.alive(holders, 3 * SECOND) == [True] * 100

    assert cost == {"LeaseKeepAlive": 1, "Txn": 1}


def test_a_row_is_kept_as_long_as_it_is_needed(rows: EtcdRows, own_etcd_server: EtcdServer) -> None:
    holder = hold(rows, "a", 2 * SECOND)
    (before,) = rows.read([holder])

    assert rows.alive([holder], 60 * SECOND) == [True]

    until("the first lease is gone", lambda: len(seconds_left(own_etcd_server)) == 1)
    (after,) = rows.read([holder])
    assert before is not None
    assert after is not None
    assert (after.born, after.value) == (before.born, before.value)
    assert rows.alive([holder], 60 * SECOND) == [True]


def test_a_row_that_is_changed_keeps_its_lease(rows: EtcdRows) -> None:
    holder = hold(rows, "a", SECOND)
    name = Name(Kind.VERSION_ROW, "a")
    (version_row,) = rows.read([name])
    committed = rows.commit(Commit(name, version_row, b"2", update={holder: b"changed"}))
    assert committed is not None

    until("the changed row is gone", lambda: rows.read([holder]) == [None])
    # And what has ended meanwhile is not made again.
    assert rows.commit(Commit(name, committed.version_row, b"3", update={holder: b"again"})) is None
    assert rows.read([holder]) == [None]


def test_memories_share_a_lease_and_outlive_the_process(own_etcd_server: EtcdServer) -> None:
    done = [Name(Kind.DONE, f"key {number}", "task") for number in range(20)]
    with rows_at(own_etcd_server.url, "prefix") as rows:
        rows.read(done)
        with counted(own_etcd_server) as cost:
            for name in done:
                memory = {name: (b"", 7200 * SECOND)}
                row = Name(Kind.VERSION_ROW, name.key)
                assert rows.commit(Commit(row, None, None, remember=memory))
        assert cost == {"LeaseGrant": 1, "Txn": 20}
        assert [granted for granted, _ in seconds_left(own_etcd_server)] == [7500]
        holder = hold(rows, "a", 30 * SECOND)

    with rows_at(own_etcd_server.url, "prefix") as others:
        assert [row is None for row in others.read([*done, holder])] == [False] * 20 + [True]


def test_a_lease_that_never_lasts_names_the_store(rows: EtcdRows) -> None:
    late = time.monotonic() + 10**6

    with pytest.raises(BackendUnavailable, match=r"^etcd at .* ended a lease 4 times"):
        rows._session.leases.lasting(SECOND, late)


def test_a_lease_that_is_never_known_names_the_store(rows: EtcdRows) -> None:
    def gone(_: object) -> None:
        raise LeaseGone

    with pytest.raises(BackendUnavailable, match=r"^etcd at .* did not know a lease .* dlock_url"):
        rows._with_leases(gone)
