"""The tests' own PostgreSQL: it starts for whoever runs the tests, and comes back after a kill."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from tests.services.postgresql import PostgresqlServer

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]


def test_what_is_committed_is_there_after_a_kill(own_postgresql_server: PostgresqlServer) -> None:
    server = own_postgresql_server
    server.query("CREATE TABLE orders (number int); INSERT INTO orders VALUES (42)")
    everybody = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]

    server.kill()

    assert not any(process.is_running() for process in everybody)
    with pytest.raises(subprocess.CalledProcessError):
        server.query("SELECT 1")
    server.restart()
    assert server.query("SELECT number FROM orders") == "42"


def test_it_does_not_run_as_root(postgresql_server: PostgresqlServer) -> None:
    assert psutil.Process(postgresql_server.pid).uids().real != 0
    assert postgresql_server.query("SHOW server_encoding") == "UTF8"
