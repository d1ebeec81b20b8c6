"""What a session is: how long it lasts, what it takes with it, whose it is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
import uuid
from typing import Any

import pytest
from kazoo.security import OPEN_ACL_UNSAFE

from celery_dlock.core.state import NotHeld, Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Rows
from celery_dlock.stores.zookeeper.store import ZooKeeperBackend
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
    plain_client,
    rows_at,
    session_of,
)
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


def test_what_a_worker_asks_before_it_forks_leaves_no_session(
    zookeeper_server: ZooKeeperServer,
) -> None:
    threads = threading.active_count()
    with rows_at(zookeeper_server.url) as rows:
        rows.granted()

        assert rows._client.session() is None
        assert until("its threads have ended", lambda: threading.active_count() <= threads)


def test_a_session_that_expired_takes_its_held_rows_and_the_next_one_has_none(
    zookeeper_server: ZooKeeperServer,
) -> None:
    with rows_at(zookeeper_server.url) as rows:
        hold(rows)
        first = session_of(rows).id
        expire(rows, zookeeper_server.address)

        assert until("there is another session", lambda: session_of(rows).id != first)
        assert rows.alive([HELD], SECOND) == [False]
        assert rows.certain(5)
        hold(rows)
        assert rows.alive([HELD], SECOND) == [True]


def test_a_row_that_an_earlier_session_has_left_is_nobodys_lease(
    zookeeper_server: ZooKeeperServer,
) -> None:
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


def test_the_row_of_a_paused_process_outlives_its_lease_and_then_is_gone(
    zookeeper_server: ZooKeeperServer,
) -> None:
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


def test_a_killed_process_frees_its_key_with_its_session_and_not_before(
    zookeeper_server: ZooKeeperServer,
) -> None:
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


def test_below_a_folder_nothing_meets_and_what_is_missing_is_made(
    zookeeper_server: ZooKeeperServer,
) -> None:
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
