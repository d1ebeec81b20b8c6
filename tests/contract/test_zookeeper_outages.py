"""A ZooKeeper that dies, hangs, loses replies, or is none."""

from __future__ import annotations

import time
import traceback
from typing import Any

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import Commit, Kind, Name
from celery_dlock.stores.zookeeper.client import ANSWER_TIMEOUT
from tests.contract.zookeeper_store import (
    HELD,
    SECOND,
    hold,
    open_rows,
    rows_at,
    session_of,
)
from tests.services.garbage import answering
from tests.services.ports import free_ports
from tests.services.proxy import proxy_to
from tests.services.until import until
from tests.services.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.server("zookeeper")

VERSION_ROW = Name(Kind.VERSION_ROW, "key")


@pytest.mark.slow
def test_while_the_server_is_silent_nothing_is_certain_and_nothing_hangs(
    own_zookeeper_server: ZooKeeperServer,
) -> None:
    with rows_at(own_zookeeper_server.url, ttl=3) as rows:
        hold(rows)
        assert rows.certain(0)

        own_zookeeper_server.pause()
        until("it is known to be silent", lambda: not rows.certain(0), timeout=3)
        began = time.monotonic()
        assert not rows.certain(0.1)
        with pytest.raises(BackendUnavailable):
            rows.read([HELD])
        assert time.monotonic() - began < ANSWER_TIMEOUT + 1
        own_zookeeper_server.resume()

        assert rows.certain(10)
        until("it answers", lambda: _answers(rows))


def _answers(rows: Any) -> bool:
    try:
        rows.read([HELD])
    except BackendUnavailable:
        return False
    return True


def test_a_server_that_was_killed_and_started_again_knows_the_session(
    own_zookeeper_server: ZooKeeperServer,
) -> None:
    with rows_at(own_zookeeper_server.url, ttl=10) as rows:
        hold(rows)
        first = session_of(rows).id

        own_zookeeper_server.kill()
        until("the connection is lost", lambda: not rows.certain(0))
        own_zookeeper_server.start()

        assert rows.certain(10)
        assert rows.alive([HELD], SECOND) == [True]
        assert session_of(rows).id == first


@pytest.mark.slow
def test_a_server_that_comes_back_empty_is_used_by_whoever_knew_more_than_it_does(
    own_zookeeper_server: ZooKeeperServer,
) -> None:
    # Given a process that has seen more changes than an empty server has made
    with rows_at(own_zookeeper_server.url, ttl=1) as rows:
        for _ in range(20):
            hold(rows)
            rows.drop(HELD)

        own_zookeeper_server.kill()
        own_zookeeper_server.wipe()
        own_zookeeper_server.start()

        until("it answers again", lambda: _answers(rows), timeout=30)
        hold(rows)
        assert rows.alive([HELD], SECOND // 4) == [True]


def test_a_connection_that_is_cut_ends_no_session(zookeeper_server: ZooKeeperServer) -> None:
    with (
        proxy_to(zookeeper_server.port) as proxy,
        rows_at(f"zookeeper://127.0.0.1:{proxy.port}") as rows,
    ):
        hold(rows)
        first = session_of(rows).id
        for _ in range(3):
            proxy.cut()
            until("it answers again", lambda: _answers(rows))
            assert rows.alive([HELD], SECOND) == [True]
        assert session_of(rows).id == first


def test_a_commit_whose_reply_is_lost_is_unknown_and_has_happened_once(
    zookeeper_server: ZooKeeperServer,
) -> None:
    with (
        proxy_to(zookeeper_server.port) as proxy,
        rows_at(f"zookeeper://127.0.0.1:{proxy.port}") as rows,
    ):
        rows.commit(Commit(VERSION_ROW, None, b"1"))
        (version_row,) = rows.read([VERSION_ROW])
        proxy.lose_replies(1, lambda request: b"marked" in request)

        with pytest.raises(BackendUnavailable):
            rows.commit(Commit(VERSION_ROW, version_row, b"marked"))

        until("it answers again", lambda: _answers(rows))
        (after,) = rows.read([VERSION_ROW])
        assert after is not None
        assert after.value == b"marked"
        assert rows.commit(Commit(VERSION_ROW, version_row, b"marked")) is None


def test_where_nobody_listens_it_is_unavailable_and_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celery_dlock.stores.zookeeper.client.ANSWER_TIMEOUT", 0.5)
    (port,) = free_ports(1)
    with rows_at(f"zookeeper://user:secret@127.0.0.1:{port}") as rows:
        assert rows.certain(0)
        for operation in (lambda: rows.read([HELD]), lambda: rows.lease_of(SECOND)):
            with pytest.raises(BackendUnavailable, match=f"127.0.0.1:{port}.*refused") as caught:
                operation()
            assert "secret" not in "".join(traceback.format_exception(caught.value))
        assert rows.certain(0)


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x04abcd", b""])
def test_a_server_that_answers_nonsense_is_unavailable(
    reply: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_dlock.stores.zookeeper.client.ANSWER_TIMEOUT", 0.5)
    with (
        answering(reply) as port,
        rows_at(f"zookeeper://127.0.0.1:{port}", ttl=1) as rows,
        pytest.raises(BackendUnavailable),
    ):
        rows.read([HELD])


def test_closing_does_not_wait_for_a_server_that_is_silent(
    own_zookeeper_server: ZooKeeperServer,
) -> None:
    rows = open_rows(own_zookeeper_server.url, ttl=10)
    hold(rows)
    own_zookeeper_server.pause()

    began = time.monotonic()
    rows.close()
    assert time.monotonic() - began < ANSWER_TIMEOUT + 1
    own_zookeeper_server.resume()


def test_a_server_that_is_silent_is_left_for_another_before_the_session_is_over(
    own_zookeeper_server: ZooKeeperServer, zookeeper_server: ZooKeeperServer
) -> None:
    """Two that know nothing of each other will do: there is nothing to be found on either."""
    url = f"zookeeper://{own_zookeeper_server.address},{zookeeper_server.address}"
    own_zookeeper_server.pause()
    with rows_at(url, ttl=10, randomize_hosts=False) as rows:
        assert rows.read([HELD]) == [None]
