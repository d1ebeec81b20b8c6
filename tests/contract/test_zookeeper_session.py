"""What a session is: how long it lasts, what it takes with it, whose it is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from celery_dlock.core.state import Claim, NotHeld, Outcome, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Rows
from celery_dlock.stores.zookeeper.client import ANSWER_TIMEOUT
from celery_dlock.stores.zookeeper.store import ZooKeeperBackend, ZooKeeperRows
from celery_dlock.testing.contract.processes import (
    FORK,
    FORKSERVER,
    Recipe,
    answer,
    child,
    enter_and_die,
)
from celery_dlock.testing.contract.words import QUEUE, claim, park, running
from tests.contract.zookeeper_store import (
    HELD,
    SECOND,
    expire,
    hold,
    open_rows,
    plain_client,
    rows_at,
    session_of,
)
from tests.services.garbage import answering
from tests.services.ports import free_ports
from tests.services.proxy import proxy_to
from tests.services.until import until
from tests.services.zookeeper import TICK, ZooKeeperServer

pytestmark = pytest.mark.server("zookeeper")

VERSION_ROW = Name(Kind.VERSION_ROW, "key")


@pytest.mark.parametrize(("asked", "granted"), [(30, 20 * TICK), (3, 3000), (0.1, 2 * TICK)])
def test_the_lease_is_half_of_what_the_session_was_granted(
    zookeeper_server: ZooKeeperServer, asked: float, granted: int
) -> None:
    with rows_at(zookeeper_server.url, ttl=asked) as rows:
        assert rows.lease_of(60 * SECOND) == rows.lease_of(1) == granted * 1000 // 2
        assert rows.granted() == granted / 1000


def test_what_is_asked_before_a_fork_leaves_nothing(zookeeper_server: ZooKeeperServer) -> None:
    threads = threading.active_count()
    with rows_at(zookeeper_server.url) as rows:
        rows.granted()

        assert rows._client.session() is None
        assert until("its threads have ended", lambda: threading.active_count() <= threads)


def test_an_expired_session_takes_its_held_rows(zookeeper_server: ZooKeeperServer) -> None:
    with rows_at(zookeeper_server.url) as rows:
        hold(rows)
        first = session_of(rows).id
        expire(rows, zookeeper_server.address)

        assert until("there is another session", lambda: session_of(rows).id != first)
        assert rows.alive([HELD], SECOND) == [False]
        assert rows.certain(5)
        hold(rows)
        assert rows.alive([HELD], SECOND) == [True]


def test_a_row_of_an_earlier_session_is_no_lease(zookeeper_server: ZooKeeperServer) -> None:
    """Until the server ends that session the row is there, and nobody can prolong it."""
    with rows_at(zookeeper_server.url) as rows, plain_client(zookeeper_server.address) as earlier:
        rows.commit(Commit(VERSION_ROW, None, b""))
        path = rows._layout.path(HELD)
        earlier.create(path, b"\0" * 8, ephemeral=True, makepath=True, acl=OPEN_ACL_UNSAFE)

        assert rows.read([HELD]) != [None]
        assert rows.alive([HELD], SECOND) == [False]


def _hold_and_tell(pipe: Any, url: str, prefix: str) -> None:
    with rows_at(url, ttl=1, prefix=prefix) as rows:
        hold(rows)
        pipe.send(rows.lease_of(SECOND))
        pipe.recv()
        pipe.send(until("it is told", lambda: _told(rows)))


def _told(rows: Rows) -> list[bool] | None:
    """What is said of the held row, once the loss of the connection has been noticed."""
    try:
        return rows.alive([HELD], SECOND)
    except BackendUnavailable:
        return None


def test_a_paused_process_keeps_its_row_and_loses_it(zookeeper_server: ZooKeeperServer) -> None:
    prefix = f"test-{uuid.uuid4().hex}"
    with (
        rows_at(zookeeper_server.url, prefix=prefix) as others,
        child(FORKSERVER, _hold_and_tell, zookeeper_server.url, prefix) as pipe,
    ):
        lease = answer(pipe)
        (process,) = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        paused = time.monotonic()
        try:
            until("its row is gone", lambda: others.read([HELD]) == [None], timeout=10)
            assert time.monotonic() - paused > lease / SECOND
        finally:
            os.kill(process.pid, signal.SIGCONT)
        pipe.send("go on")
        assert answer(pipe) == [False]


def test_a_killed_process_frees_its_key_with_its_session(zookeeper_server: ZooKeeperServer) -> None:
    prefix = f"test-{uuid.uuid4().hex}"
    options = BackendOptions(prefix=prefix, ttl=1.0)
    recipe = Recipe(ZooKeeperBackend, zookeeper_server.url, options)
    with child(FORKSERVER, enter_and_die, recipe, claim("a", ttl=0.5)) as pipe:
        dead = answer(pipe)
    backend = recipe.build()
    park(backend, "b", ttl=0.5)

    wakes = until("the next is woken", lambda: backend.reap("key").wakes, timeout=10)

    assert [wake.task for wake in wakes] == ["b"]
    assert running(backend.enter(claim("b", wait=QUEUE, ttl=0.5))).token > dead.token
    assert isinstance(backend.leave(claim("a"), Outcome.DONE).verdict, NotHeld)
    backend.close()


def test_it_leaves_no_threads_and_no_sessions_behind(zookeeper_server: ZooKeeperServer) -> None:
    before = threading.active_count()
    sessions = zookeeper_server.monitored("num_alive_connections")
    for _ in range(3):
        with rows_at(zookeeper_server.url) as rows:
            hold(rows)
    until("the threads have ended", lambda: threading.active_count() <= before)
    until(
        "the connections too",
        lambda: zookeeper_server.monitored("num_alive_connections") <= sessions,
    )


def test_folders_are_apart_and_made_where_missing(zookeeper_server: ZooKeeperServer) -> None:
    top = f"apps-{uuid.uuid4().hex}"
    with (
        rows_at(f"{zookeeper_server.url}/{top}/one", prefix="same") as one,
        rows_at(f"{zookeeper_server.url}/{top}/other/", prefix="same") as other,
        plain_client(zookeeper_server.address) as client,
    ):
        hold(one)
        assert other.read([HELD, VERSION_ROW]) == [None, None]
        hold(other)
        assert client.get_children(f"/{top}/other") == ["same,1"]
        assert other.names(Kind.VERSION_ROW) == [VERSION_ROW]


def test_what_a_user_has_made_is_open_to_that_user_alone(zookeeper_server: ZooKeeperServer) -> None:
    prefix, address = f"test-{uuid.uuid4().hex}", zookeeper_server.address
    url = f"zookeeper://shop:se%2Fcret@{address}"
    with rows_at(url, prefix=prefix) as rows, rows_at(url, prefix=prefix) as same:
        hold(rows)
        assert same.read([HELD]) != [None]
        for them in (f"zookeeper://shop:wrong@{address}", f"zookeeper://{address}"):
            with rows_at(them, prefix=prefix) as others:
                with pytest.raises(BackendUnavailable, match="NoAuth") as caught:
                    others.read([HELD])
                with pytest.raises(BackendUnavailable, match="NoAuth"):
                    others.commit(Commit(Name(Kind.VERSION_ROW, "new"), None, b""))
                assert "wrong" not in "".join(traceback.format_exception(caught.value))


def _in_a_fork(pipe: Any, rows: Any) -> None:
    """Hold another row, by a session of one's own; then go as a killed process goes."""
    mine = HELD._replace(key="child")
    hold(rows, mine)
    pipe.send((session_of(rows).id, rows.alive([HELD, mine], SECOND)))
    pipe.recv()
    rows.close()
    pipe.send("closed")
    pipe.recv()


def test_a_forked_child_has_a_session_of_its_own(zookeeper_server: ZooKeeperServer) -> None:
    with rows_at(zookeeper_server.url) as rows:
        hold(rows)
        with child(FORK, _in_a_fork, rows) as pipe:
            number, alive = answer(pipe)
            assert number != session_of(rows).id
            assert alive == [False, True]
            pipe.send("close")
            assert answer(pipe) == "closed"

            assert rows.read([HELD._replace(key="child")]) == [None]
            assert rows.alive([HELD], SECOND) == [True]


# A ZooKeeper that dies, hangs, loses replies, or is none.


@pytest.mark.slow
def test_a_silent_server_makes_nothing_certain(own_zookeeper_server: ZooKeeperServer) -> None:
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
    return answered(lambda: rows.read([HELD]))


def test_a_restarted_server_knows_the_session(own_zookeeper_server: ZooKeeperServer) -> None:
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
def test_an_emptied_server_is_used_by_who_knew_more(own_zookeeper_server: ZooKeeperServer) -> None:
    # Given a process that has seen more changes than an empty server has made
    with rows_at(own_zookeeper_server.url, ttl=1) as rows:
        for _ in range(20):
            hold(rows)
            rows.drop(HELD)

        own_zookeeper_server.kill()
        own_zookeeper_server.wipe()
        own_zookeeper_server.start()

        assert not rows.lost_data()
        until("it answers again", lambda: _answers(rows), timeout=30)
        assert rows.lost_data()
        assert not rows.lost_data()
        hold(rows)
        assert rows.alive([HELD], SECOND // 4) == [True]


@pytest.mark.slow
def test_a_row_from_a_backup_ends_all_the_same(own_zookeeper_server: ZooKeeperServer) -> None:
    server = own_zookeeper_server
    options = BackendOptions(prefix="test", ttl=10.0)
    with closing(ZooKeeperBackend.from_url(server.url, options)) as backend:
        # Given one lock that is held now, and two that were released after the backup
        keys = ("runs", "ended", "long" * 100)
        runs, ended, long = (claim("a", key=key, ttl=30) for key in keys)
        for each in (runs, ended, long):
            running(backend.enter(each))
        rows = backend._rows
        assert isinstance(rows, ZooKeeperRows)
        session = session_of(rows)
        first = session.id
        server.back_up()
        until("it answers", lambda: answered(lambda: backend.leave(ended, Outcome.DONE)))
        backend.leave(long, Outcome.DONE)

        server.restore()
        with plain_client(server.address) as other:
            for _ in range(20):  # so it has seen as much as the process
                other.create("/some", sequence=True)

        until("it is used", lambda: answered(lambda: backend.peek("runs")))
        for key in keys[1:]:
            other_task = claim("b", key=key)
            until("it is free", partial(_enters, backend, other_task))
        assert session.id == first
        assert rows.alive([Name(Kind.HOLDER, "runs", runs.owner)], SECOND) == [True]


def _enters(backend: ZooKeeperBackend, asking: Claim) -> bool:
    return isinstance(backend.enter(asking).verdict, Run)


def answered(operation: Callable[[], object]) -> bool:
    try:
        operation()
    except BackendUnavailable:
        return False
    return True


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


def test_a_commit_whose_reply_is_lost_happens_once(zookeeper_server: ZooKeeperServer) -> None:
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


def test_where_nobody_listens_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_closing_does_not_wait_for_a_silent_server(own_zookeeper_server: ZooKeeperServer) -> None:
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
