"""The tests' own MariaDB: it starts for whoever runs the tests, and comes back after a kill."""

from __future__ import annotations

from contextlib import closing

import psutil
import pymysql
import pytest
from pymysql.err import OperationalError  # Django's import puts another one into pymysql.err

from tests.services.mariadb import MariadbServer

pytestmark = [pytest.mark.server("mariadb"), pytest.mark.once]


def test_what_is_committed_is_there_after_a_kill(own_mariadb_server: MariadbServer) -> None:
    server = own_mariadb_server
    with closing(pymysql.connect(**server.parameters)) as db, db.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (number int)")
        cursor.execute("INSERT INTO orders VALUES (42)")
        db.commit()
    process = psutil.Process(server.pid)

    server.kill()

    assert not process.is_running()
    with pytest.raises(OperationalError):
        pymysql.connect(**server.parameters)
    server.restart()
    with closing(pymysql.connect(**server.parameters)) as db, db.cursor() as cursor:
        cursor.execute("SELECT number FROM orders")
        assert cursor.fetchall() == ((42,),)


def test_it_does_not_run_as_root(mariadb_server: MariadbServer) -> None:
    assert psutil.Process(mariadb_server.pid).uids().real != 0
