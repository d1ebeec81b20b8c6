"""One member of three is enough to know: the others are found when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Row
from celery_dlock.stores.etcd.client import Connection
from celery_dlock.stores.etcd.store import EtcdRows
from tests.contract.etcd_store import rows_at
from tests.services.etcd import EtcdServer
from tests.services.etcd_cluster import EtcdCluster
from tests.services.ports import free_ports
from tests.services.until import until

pytestmark = pytest.mark.server("etcd")

VERSION_ROW = Name(Kind.VERSION_ROW, "key")
HOLDER = Name(Kind.HOLDER, "key", "task|nonce")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster() as cluster:
        yield cluster


@pytest.fixture
def rows(cluster: EtcdCluster) -> Iterator[EtcdRows]:
    with rows_at(cluster.url) as rows:
        yield rows


def connection_of(rows: EtcdRows) -> Connection:
    connection = rows._session.client._connection
    assert connection is not None
    return connection


def asked(rows: EtcdRows, cluster: EtcdCluster) -> EtcdServer:
    """The member that *rows* speak to."""
    endpoint = connection_of(rows).endpoint
    return next(member for member in cluster.members if member.address == endpoint)


def change(rows: EtcdRows, version_row: Row | None) -> Row:
    committed = rows.commit(
        Commit(VERSION_ROW, version_row, b"" if version_row is None else version_row.value + b"x")
    )
    assert committed is not None
    assert committed.version_row is not None
    return committed.version_row


def go_on(rows: EtcdRows) -> None:
    """Have *rows* speak to another member from now on."""
    rows._session.client._leave(connection_of(rows))
    rows.read([VERSION_ROW])


def test_a_follower_that_is_killed_between_calls_is_not_noticed(
    rows: EtcdRows, cluster: EtcdCluster
) -> None:
    version_row = change(rows, None)
    if asked(rows, cluster) is cluster.leader():
        go_on(rows)
    first = asked(rows, cluster)
    connection = connection_of(rows)
    states: list[object] = []
    connection._channel.subscribe(states.append)
    until("it is connected", lambda: grpc.ChannelConnectivity.READY in states)
    states.clear()
    first.kill()
    until("gRPC has seen that it is gone", lambda: states)
    connection._channel.unsubscribe(states.append)
    try:
        version_row = change(rows, version_row)  # was not sent to it, so it is to the next
        assert asked(rows, cluster) is not first
        assert rows.read([VERSION_ROW]) == [version_row]
    finally:
        first.start()


def test_a_member_that_hangs_is_left_for_the_next_one(rows: EtcdRows, cluster: EtcdCluster) -> None:
    committed = rows.commit(Commit(VERSION_ROW, None, b"", held=(HOLDER, b""), lease=30_000_000))
    assert committed is not None
    version_row = committed.version_row
    first = asked(rows, cluster)
    first.pause()
    try:
        # What repeats safely is asked of the next one within the same call
        assert rows.read([VERSION_ROW]) == [version_row]
        assert rows.alive([HOLDER], 60_000_000) == [True]
        assert asked(rows, cluster) is not first
        version_row = change(rows, version_row)
    finally:
        first.resume()
    assert rows.read([VERSION_ROW]) == [version_row]


def test_a_commit_that_got_no_answer_is_told_and_not_sent_again(cluster: EtcdCluster) -> None:
    with rows_at(cluster.url, "one", timeout=1) as rows, rows_at(cluster.url, "one") as others:
        version_row = change(rows, None)
        first = asked(rows, cluster)
        others.read([VERSION_ROW])
        go_on(others)
        assert asked(others, cluster) is not first
        first.pause()
        try:
            with pytest.raises(BackendUnavailable):
                change(rows, version_row)
            assert others.read([VERSION_ROW]) == [version_row]
            change(rows, version_row)  # the next one, by another member
        finally:
            first.resume()
        # The one that had been kept in the paused member comes too late
        until("the member is back", first.answers)
        (now,) = rows.read([VERSION_ROW])
        assert now is not None
        assert now.stamp != version_row.stamp


def test_a_commit_whose_member_dies_is_not_sent_again(rows: EtcdRows, cluster: EtcdCluster) -> None:
    version_row = change(rows, None)
    first = asked(rows, cluster)
    first.pause()
    killing = threading.Timer(0.5, first.kill)
    killing.start()
    try:
        with pytest.raises(BackendUnavailable):
            change(rows, version_row)
        until("the others answer", lambda: found(rows))
        assert found(rows) == [version_row]
    finally:
        killing.join()
        first.start()


def test_who_answers_nobody_is_tried_in_turn_and_told(cluster: EtcdCluster) -> None:
    nobody = [f"127.0.0.1:{port}" for port in free_ports(2)]
    (alive, *_) = cluster.members

    with rows_at(f"etcd://{nobody[0]},{alive.address},{nobody[1]}") as rows:
        for _ in range(3):  # whichever of them it begins with
            rows.close()
            change(rows, rows.read([VERSION_ROW])[0])
    with rows_at(f"etcd://{','.join(nobody)}", timeout=60) as rows:
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match=nobody[0]):
                rows.commit(Commit(VERSION_ROW, None, b""))
        assert time.monotonic() - began < 60  # nobody was waited for


def test_a_server_that_comes_back_is_found(own_etcd_server: EtcdServer) -> None:
    with rows_at(own_etcd_server.url, timeout=1) as rows:
        version_row = change(rows, None)
        own_etcd_server.kill()
        for _ in range(5):
            with pytest.raises(BackendUnavailable):
                rows.read([VERSION_ROW])
        own_etcd_server.start()

        until("it is found", lambda: found(rows) == [version_row])


def found(rows: EtcdRows) -> list[Row | None]:
    try:
        return rows.read([VERSION_ROW])
    except BackendUnavailable:
        return []
