"""Who comes while another's transaction is open waits for its end, and then is told what is so."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from pymysql.err import OperationalError  # Django's import puts another one into pymysql.err

from celery_dlock import LockLost, StaleFencingToken, fencing
from tests.fencing.clients import Client, open_client
from tests.fencing.conftest import Database, Open
from tests.fencing.faces import faces
from tests.fencing.leases import lease, term
from tests.services.until import until

WAITING = {
    "postgresql": "SELECT COUNT(*) FROM pg_locks WHERE NOT granted",
    # innodb_trx shows the same picture for as long as it is looked at all the time
    "mariadb": "SELECT CAST(variable_value AS INT) FROM information_schema.global_status "
    "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'",
}

pytestmark = [pytest.mark.once, pytest.mark.parametrize("face", faces("driver"))]


@pytest.fixture
def server(face: tuple[str, str]) -> str:
    return face[0]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Asked for before any client, and so gone after it: nobody waits for one any more."""
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def first(
    pool: ThreadPoolExecutor, face: tuple[str, str], database: Database, clients: Open
) -> Client:
    server, library = face
    return clients(library, database(server))


@pytest.fixture
def watcher(server: str, database: Database, clients: Open) -> Client:
    return clients("driver", database(server), autocommit=True)


Second = Callable[[Callable[[Client], Any], str], Future[Any]]


@pytest.fixture
def comes_second(
    pool: ThreadPoolExecutor,
    face: tuple[str, str],
    database: Database,
    first: Client,
    watcher: Client,
) -> Second:
    """``comes_second(work, end)``: in a transaction of its own, while the first one is open.

    That one ends when somebody waits for it; SQLite tells nobody of whom that is so.
    """
    server, library = face

    def comes_second(work: Callable[[Client], Any], end: str) -> Future[Any]:
        def comes() -> Any:
            with open_client(library, database(server)) as second, second.transaction():
                return work(second)

        came = pool.submit(comes)
        if server in WAITING:
            until("somebody waits for a lock", lambda: watcher.execute(WAITING[server])[0][0])
        getattr(first, end)()
        return came

    return comes_second


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_end_decides_whether_an_effect_is_new(
    first: Client, comes_second: Second, name: str, end: str
) -> None:
    assert first.once(name)

    second = comes_second(lambda client: client.once(name), end)

    assert second.result() is (end == "rollback")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_end_decides_who_is_too_late(
    first: Client, comes_second: Second, name: str, end: str
) -> None:
    first.admit(name, 8, "later")

    refused = comes_second(lambda client: client.admit(name, 7, "earlier"), end).exception()

    assert isinstance(refused, StaleFencingToken) == (end == "commit")
    assert (refused is None) == (end == "rollback")


class TestMint:
    def test_the_lock_is_checked_while_nobody_else_can_count(
        self, server: str, first: Client, clients: Open, database: Database, name: str
    ) -> None:
        with first.transaction():
            fencing.mint(first.fenced, name, lease(term()))
        other = clients("driver", database(server))
        asked = []

        def certain(_: float) -> bool:
            asked.append(cannot_write(server, other, name))
            return True

        with first.transaction():
            assert fencing.mint(first.fenced, name, lease(term(), certain=certain)) == 2
        assert asked == [True]

    def test_a_lost_lock_gets_nothing(self, server: str, first: Client, name: str) -> None:
        mine = lease(term())
        mine.give_back()
        with pytest.raises(LockLost), first.transaction():
            fencing.mint(first.fenced, name, mine)
        with first.transaction():
            assert fencing.mint(first.fenced, name, lease(term())) == 1


def cannot_write(server: str, client: Client, resource: str) -> bool:
    """Without waiting."""
    try:
        if server == "sqlite":
            client.execute("PRAGMA busy_timeout = 0")
            client.execute("BEGIN IMMEDIATE")
        else:
            name = f"'{resource}'"
            client.execute(f"SELECT * FROM dlock_fence WHERE resource = {name} FOR UPDATE NOWAIT")
    except (sqlite3.OperationalError, psycopg.errors.LockNotAvailable):
        return True
    except OperationalError as error:
        return bool(error.args[0] == 1205)
    finally:
        client.rollback()
    return False
