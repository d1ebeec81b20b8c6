"""A store that is not shipped: the contract and what it needs for it, on PostgreSQL.

It shows what one more store takes: the rules, the rows and the contract are those of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from celery_dlock.core.state import Busy, Left, Outcome
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.testing.contract.words import claim, park, running
from tests.contract.suites import Notes, SharedStorage
from tests.postgresql.connections import Connection
from tests.postgresql.store import PostgresqlBackend
from tests.services.postgresql import PostgresqlServer

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]


class TestPostgresql(SharedStorage, Notes):
    backend_class = PostgresqlBackend

    @pytest.fixture
    def url(self, postgresql_server: PostgresqlServer) -> str:
        return postgresql_server.url


@pytest.fixture
def backend(own_postgresql_server: PostgresqlServer) -> Iterator[PostgresqlBackend]:
    with closing(
        PostgresqlBackend.from_url(own_postgresql_server.url, BackendOptions())
    ) as backend:
        yield backend


def test_a_server_that_was_killed_knows_the_holder_and_idle_connections_are_made_anew(
    backend: PostgresqlBackend, own_postgresql_server: PostgresqlServer
) -> None:
    token = running(backend.enter(claim("a"))).token
    own_postgresql_server.kill()
    with pytest.raises(BackendUnavailable, match="PostgreSQL at"):
        backend.enter(claim("a"))
    own_postgresql_server.restart()

    assert isinstance(backend.enter(claim("b")).verdict, Busy)
    assert running(backend.enter(claim("a"))).token == token
    own_postgresql_server.kill()
    own_postgresql_server.restart()
    assert backend.leave(claim("a"), Outcome.OVER).verdict == Left(carried=False)
    assert running(backend.enter(claim("b"))).token > token


def test_who_leaves_and_loses_the_answer_is_told_it_the_second_time(
    backend: PostgresqlBackend,
    own_postgresql_server: PostgresqlServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running(backend.enter(claim("a")))
    park(backend, "b")
    execute, lost = Connection.execute, list[str]()

    def executed(connection: Connection, statement: str, *values: object) -> object:
        answer = execute(connection, statement, *values)  # type: ignore[arg-type]
        if statement == "COMMIT" and not lost:
            lost.append(statement)
            backends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            own_postgresql_server.query(f"{backends} WHERE application_name = 'celery-dlock'")
            return execute(connection, "SELECT 1")
        return answer

    monkeypatch.setattr(Connection, "execute", executed)
    reply = backend.leave(claim("a"), Outcome.DONE)

    assert lost
    assert isinstance(reply.verdict, Left)
    assert [wake.task for wake in reply.wakes] == ["b"]


def test_by_itself_it_goes_by_the_servers_clock(
    backend: PostgresqlBackend, own_postgresql_server: PostgresqlServer
) -> None:
    seconds = "SELECT floor(extract(epoch FROM clock_timestamp()))"
    before = int(own_postgresql_server.query(seconds))
    assert before <= backend.now() / 1e6 <= int(own_postgresql_server.query(seconds)) + 1


def test_a_sweep_passes_by_a_key_that_somebody_else_is_at(backend: PostgresqlBackend) -> None:
    keys = ["one", "two"]
    for key in keys:
        running(backend.enter(claim("a", key=key)))
        park(backend, "b", key=key)
    with backend.transaction(keys) as (db, _):
        db.execute("UPDATE state SET due=0")

    with backend.transaction(["one"]):
        assert backend.sweep().next_in == 0

    assert overdue(backend) == ["one"]
    backend.sweep()
    assert overdue(backend) == []


def overdue(backend: PostgresqlBackend) -> list[str]:
    with backend.transaction() as (db, _):
        return [key for (key,) in db.execute("SELECT key FROM state WHERE due=0").fetchall()]


def test_what_is_wrong_with_the_url_is_said_without_a_password() -> None:
    for url in ("postgresql://u:secret@[h/db", "postgresql://u:secret@h/db?nonsense=secret"):
        with pytest.raises(ConfigurationError) as caught:
            PostgresqlBackend.from_url(url, BackendOptions())
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_refused_password_is_in_no_message(own_postgresql_server: PostgresqlServer) -> None:
    url = own_postgresql_server.url.replace("dlock@", "nobody:secret@")
    with closing(PostgresqlBackend.from_url(url, BackendOptions())) as backend:
        with pytest.raises(BackendUnavailable) as caught:
            backend.enter(claim("a"))
        assert isinstance(caught.value.__cause__, psycopg.Error)
        assert "secret" not in f"{caught.value} {caught.value.__cause__}"
