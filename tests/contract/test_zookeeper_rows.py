"""Rows as nodes of a real ZooKeeper."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import Commit, Committed, Kind, Name
from celery_dlock.stores.zookeeper import forgetting as zookeeper_memory
from celery_dlock.stores.zookeeper.rows import LARGEST_REQUEST, MultiOperation, name_of, part_of
from celery_dlock.stores.zookeeper.store import ZooKeeperRows
from celery_dlock.testing.contract.words import at_once
from tests.contract.rows_contract import RowsContract
from tests.contract.rows_words import (
    DONE,
    MESSAGE,
    VERSION_ROW,
    happens,
    made,
    tidy,
    value_of,
    version_row_of,
)
from tests.contract.zookeeper_store import SECOND, open_rows, plain_client, session_of
from tests.services.until import until
from tests.services.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.server("zookeeper")

Open = Callable[[], ZooKeeperRows]


@pytest.fixture
def opened(zookeeper_server: ZooKeeperServer) -> Iterator[Open]:
    """Makes instances on one prefix, and closes them."""
    prefix = f"test-{uuid.uuid4().hex}"
    made: list[ZooKeeperRows] = []

    def make() -> ZooKeeperRows:
        made.append(open_rows(zookeeper_server.url, prefix=prefix))
        return made[-1]

    yield make
    for rows in made:
        rows.close()


@pytest.fixture
def rows(opened: Open) -> ZooKeeperRows:
    return opened()


@pytest.fixture
def others(opened: Open) -> ZooKeeperRows:
    return opened()


class TestZooKeeperRows(RowsContract):
    """All of it."""


@pytest.mark.parametrize("writes", [0, 1, 5])
def test_a_version_row_made_anew_is_told_apart_though_its_version_is_the_same(
    rows: ZooKeeperRows, others: ZooKeeperRows, writes: int
) -> None:
    def made_and_written(by: ZooKeeperRows) -> str:
        version_row = made(by)
        for number in range(writes):
            committed = happens(by, Commit(VERSION_ROW, version_row, b"%d" % number)).version_row
            assert committed is not None
            version_row = committed
        return version_row.stamp

    old = made_and_written(rows)
    stale = version_row_of(rows)
    happens(others, Commit(VERSION_ROW, version_row_of(others), None))
    new = made_and_written(others)

    assert old.split(".")[0] == new.split(".")[0]
    assert stale is not None
    assert stale.stamp == old
    for version_row in (b"mine", stale.value, None):
        assert rows.commit(Commit(VERSION_ROW, stale, version_row, create={MESSAGE: b""})) is None
    assert value_of(rows, MESSAGE) is None


def test_nothing_of_a_version_row_is_left_when_it_is_deleted(
    rows: ZooKeeperRows, zookeeper_server: ZooKeeperServer
) -> None:
    version_row = made(rows)
    folder = rows._layout.path(VERSION_ROW).rpartition("/")[0]
    with plain_client(zookeeper_server.address) as client:
        assert len(client.get_children(folder)) == 1
        happens(rows, Commit(VERSION_ROW, version_row, None))
        assert client.get_children(folder) == []


def test_the_first_commit_makes_the_folders_and_happens_once(rows: ZooKeeperRows) -> None:
    first = happens(
        rows, Commit(VERSION_ROW, None, b"1", create={MESSAGE: b""}, remember={DONE: (b"", SECOND)})
    )

    assert version_row_of(rows) == first.version_row


def test_a_commit_too_large_is_refused_and_the_session_stays(rows: ZooKeeperRows) -> None:
    """The server would drop the connection, and every lease of the process might go with it."""
    made(rows)
    session = session_of(rows).id
    too_large = {Name(Kind.MESSAGE, "key", str(n)): b"x" * (LARGEST_REQUEST // 4) for n in range(4)}

    with pytest.raises(BackendUnavailable, match=rf"change of {VERSION_ROW.key!r} has \d+ bytes"):
        rows.commit(Commit(VERSION_ROW, version_row_of(rows), b"", create=too_large))

    assert rows.names(Kind.MESSAGE) == []
    assert session_of(rows).id == session
    too_large.popitem()
    happens(rows, Commit(VERSION_ROW, version_row_of(rows), b"", create=too_large))


def test_the_largest_commit_is_taken(rows: ZooKeeperRows) -> None:
    plan = MultiOperation(rows._layout, Commit(VERSION_ROW, None, b"", create={MESSAGE: b""}), 0)
    room = LARGEST_REQUEST - plan.size

    happens(rows, Commit(VERSION_ROW, None, b"", create={MESSAGE: b"x" * room}))

    assert len(value_of(rows, MESSAGE) or b"") == room


def test_somebody_elses_node_under_our_name_is_refused_and_left_alone(
    rows: ZooKeeperRows, zookeeper_server: ZooKeeperServer
) -> None:
    with plain_client(zookeeper_server.address) as client:
        for number, theirs in enumerate([b"", b"theirs", b"x" * 100]):
            name = Name(Kind.MESSAGE, str(number) * 300)
            path = rows._layout.path(name)
            client.create(path, theirs, makepath=True)

            with pytest.raises(BackendUnavailable, match="not a row of ours"):
                rows.read([name])
            assert client.get(path)[0] == theirs


def test_a_name_is_told_from_its_node(rows: ZooKeeperRows) -> None:
    for name in [DONE, Name(Kind.DUE, "a,/b", "0001"), Name(Kind.PAGE, "", ".."), VERSION_ROW]:
        file = rows._layout.path(name).rpartition("/")[2]
        assert name_of(name.kind, file) == name


def test_a_process_forgets_a_hundred(rows: ZooKeeperRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_memory, "SLACK", 0)
    names = [Name(Kind.DONE, "key", str(n)) for n in range(zookeeper_memory.BATCH)]
    for name in names:
        happens(rows, Commit(VERSION_ROW, None, None, remember={name: (b"", 1)}))
    assert len(rows.names(Kind.DONE)) == len(names)
    time_passes(rows)

    happens(rows, Commit(VERSION_ROW, None, None, remember={DONE: (b"", 3600 * SECOND)}))

    assert rows.names(Kind.DONE) == [DONE]


def test_what_is_done_again_is_not_forgotten_by_who_is_slow(
    rows: ZooKeeperRows, others: ZooKeeperRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a row that is overdue and its deletion, it is deleted and made anew."""
    monkeypatch.setattr(zookeeper_memory, "SLACK", 0)
    happens(rows, Commit(VERSION_ROW, None, None, remember={DONE: (b"old", 1)}))
    time_passes(rows)
    session, part = session_of(rows), part_of(DONE)
    flight, again = session.flight, list[Committed]()

    def slow(sends: Any) -> list[Any]:
        found = flight(sends)
        if isinstance(found[0], tuple) and isinstance(found[0][0], bytes) and not again:  # the row
            again.append(happens(others, Commit(VERSION_ROW, None, None, delete={DONE})))
            happens(
                others, Commit(VERSION_ROW, None, None, remember={DONE: (b"new", 3600 * SECOND)})
            )
        return found

    monkeypatch.setattr(session, "flight", slow)
    rows._forgetting.tidy(session, part)

    assert again
    assert value_of(others, DONE) == b"new"


def test_it_remembers_a_bounded_number_of_what_it_has_to_forget(rows: ZooKeeperRows) -> None:
    for number in range(3 * zookeeper_memory.KNOWN):
        rows._forgetting.expect(Name(Kind.DONE, "key", str(number)), 2**53)
    assert len(rows._forgetting._expected[part_of(DONE)]) == zookeeper_memory.KNOWN


HOUR = 3600 * SECOND


def time_passes(rows: ZooKeeperRows) -> None:
    """Some of the server's milliseconds."""
    was = rows.now()
    until("the clock has moved", lambda: rows.now() > was + 5000)


def test_its_clock_follows_the_servers(rows: ZooKeeperRows) -> None:
    rows._clock._offset -= HOUR
    assert abs(rows.now() + HOUR - time.time_ns() // 1000) < SECOND

    made(rows)

    assert abs(rows.now() - time.time_ns() // 1000) < SECOND


def test_a_clock_that_steps_changes_nothing(
    rows: ZooKeeperRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, before = time.time_ns, rows.now()
    monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR * 1000)

    assert rows.now() - before < SECOND


def test_a_clock_ahead_forgets_nothing_early(rows: ZooKeeperRows, others: ZooKeeperRows) -> None:
    happens(rows, Commit(VERSION_ROW, None, None, remember={DONE: (b"", HOUR)}))
    others._clock._offset += 2 * HOUR

    tidy(others)

    assert value_of(rows, DONE) == b""


def test_a_clock_behind_remembers_as_long(rows: ZooKeeperRows, others: ZooKeeperRows) -> None:
    made(others, Name(Kind.VERSION_ROW, "so that there are folders"))
    rows._clock._offset -= 2 * HOUR
    happens(rows, Commit(VERSION_ROW, None, None, remember={DONE: (b"", HOUR)}))

    tidy(others)

    assert value_of(rows, DONE) == b""


def test_a_session_renewed_for_less_time_is_trusted_for_no_more(rows: ZooKeeperRows) -> None:
    lease, holder = rows.lease_of(0), Name(Kind.HOLDER, "key", "a")
    happens(rows, Commit(VERSION_ROW, None, b"", held=(holder, b""), lease=lease))
    assert rows.alive([holder], lease) == [True]
    session = session_of(rows)
    assert session.timeout is not None
    session.timeout /= 2

    assert rows.alive([holder], lease) == [False]


def test_the_same_stamp_with_another_value_is_the_same_row(rows: ZooKeeperRows) -> None:
    """A guess at a value does no harm: the stamp alone decides."""
    happens(rows, Commit(VERSION_ROW, replace(made(rows), value=b"guessed"), b"2"))
    assert value_of(rows, VERSION_ROW) == b"2"


def test_those_who_wait_for_folders_at_once_all_get_through(opened: Open) -> None:
    rows = [opened() for _ in range(6)]

    at_once(6, lambda number: made(rows[number], Name(Kind.VERSION_ROW, f"key {number}")))

    assert len(rows[0].names(Kind.VERSION_ROW)) == 6
