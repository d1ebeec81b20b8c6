"""What etcd takes at once, and that nobody runs into it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from celery_dlock.stores.etcd import store as etcd_store
from celery_dlock.stores.etcd.store import EtcdBackend, EtcdRows
from tests.contract.etcd_store import counted, rows_at
from tests.services.etcd import EtcdServer

pytestmark = pytest.mark.server("etcd")

VERSION_ROW = Name(Kind.VERSION_ROW, "key")


@pytest.fixture
def rows(own_etcd_server: EtcdServer) -> Iterator[EtcdRows]:
    with rows_at(own_etcd_server.url) as rows:
        yield rows


def messages(count: int) -> dict[Name, bytes]:
    return {Name(Kind.MESSAGE, "key", str(number)): b"" for number in range(count)}


def test_a_commit_of_128_changes_is_taken_and_one_more_is_told(rows: EtcdRows) -> None:
    assert rows.commit(Commit(VERSION_ROW, None, b"", create=messages(127)))
    (version_row,) = rows.read([VERSION_ROW])

    with pytest.raises(ValueError, match="etcd takes 128"):
        rows.commit(Commit(VERSION_ROW, version_row, b"", delete=set(messages(128))))
    with pytest.raises(ValueError, match="etcd takes 128"):
        rows.commit(Commit(VERSION_ROW, version_row, None, create=messages(128)))

    assert rows.commit(Commit(VERSION_ROW, version_row, None, delete=set(messages(127))))
    assert rows.names(Kind.MESSAGE) == []


def test_names_are_listed_page_by_page(
    rows: EtcdRows, own_etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "PAGE", 10)
    for number in range(35):
        name = Name(Kind.VERSION_ROW, "\xff" * number)
        assert rows.commit(Commit(name, None, b"x" * 1000))

    with counted(own_etcd_server) as cost:
        assert len(set(rows.names(Kind.VERSION_ROW))) == 35

    assert cost == {"Range": 4}


def test_more_is_read_than_one_request_takes(rows: EtcdRows, own_etcd_server: EtcdServer) -> None:
    assert rows.commit(Commit(VERSION_ROW, None, None, create=messages(100)))
    names = [Name(Kind.MESSAGE, "key", str(number)) for number in range(300)]

    with counted(own_etcd_server) as cost:
        read = rows.read(names)

    assert [row is not None for row in read] == [True] * 100 + [False] * 200
    assert cost == {"Txn": 3}


def test_an_answer_may_be_larger_than_grpc_takes_by_itself(rows: EtcdRows) -> None:
    names = [Name(Kind.MESSAGE, f"key {number}", "task") for number in range(9)]
    for name in names:
        create = {name: b"x" * EtcdBackend.largest_message}
        assert rows.commit(Commit(Name(Kind.VERSION_ROW, name.key), None, None, create=create))

    assert [row and len(row.value) for row in rows.read(names)] == [2**20] * 9


def test_what_is_too_large_for_a_request_is_refused_and_the_next_is_taken(rows: EtcdRows) -> None:
    for size in (2 * 2**20, 8 * 2**20):  # told by the server, and by its gRPC
        huge = {Name(Kind.MESSAGE, "key", "task"): b"x" * size}
        with pytest.raises(BackendUnavailable, match="larg"):
            rows.commit(Commit(VERSION_ROW, None, b"", create=huge))
        assert rows.read([VERSION_ROW, *huge]) == [None, None]


def test_a_late_drop_spares_the_next_row(rows: EtcdRows, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = Name(Kind.HOLDER, "key", "task|nonce")

    def made() -> None:
        (version_row,) = rows.read([VERSION_ROW])
        assert rows.commit(
            Commit(VERSION_ROW, version_row, b"", held=(holder, b""), lease=30_000_000)
        )

    made()
    found = rows._look([holder], keys_only=True)
    rows.drop(holder)
    made()

    monkeypatch.setattr(rows, "_look", lambda *args, **how: found)
    rows.drop(holder)
    monkeypatch.undo()

    assert rows.alive([holder], 30_000_000) == [True]
    rows.drop(holder)
    assert rows.read([holder]) == [None]
