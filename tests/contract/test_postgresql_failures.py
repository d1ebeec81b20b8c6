"""What a PostgreSQL server refuses: nothing has happened then, and the next request is served."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from celery_dlock.core.state import Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.postgresql.connection import address_of
from celery_dlock.stores.postgresql.schema import grants
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.testing.contract.words import claim, park, running, woken
from tests.contract.postgresql_store import refusing, stopping
from tests.services.postgresql import PostgresqlServer

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]

#: Errors that end when whoever was in the way has gone.
PASSING = {"serialization failure": "40001", "deadlock": "40P01", "lock timeout": "55P03"}

#: Errors that stay until somebody has done something, and what the connection does meanwhile.
LASTING = {
    "disk full": "53100",
    "out of memory": "53200",
    "read-only standby": "25006",
    "statement timeout": "57014",
    "no privilege": "42501",
}


@pytest.fixture
def backend(postgresql_server: PostgresqlServer) -> Iterator[PostgresqlBackend]:
    options = BackendOptions(prefix=f"refused-{uuid.uuid4().hex}")
    with closing(PostgresqlBackend.from_url(postgresql_server.url, options)) as backend:
        backend.now()
        yield backend


@pytest.mark.parametrize("waits", [False, True], ids=["free", "its turn"])
@pytest.mark.parametrize("name", PASSING)
def test_an_operation_that_got_into_the_way_of_another_is_made_again(
    name: str, waits: bool, backend: PostgresqlBackend, postgresql_server: PostgresqlServer
) -> None:
    if waits:
        running(backend.enter(claim("before")))
        park(backend, "refused")
        assert woken(backend.leave(claim("before"), Outcome.DONE)) == ["refused"]

    with refusing(postgresql_server, PASSING[name], 2):
        running(backend.enter(claim("refused")))

    assert [holder.task for holder in backend.peek("key").holders] == ["refused"]


@pytest.mark.parametrize("name", LASTING)
def test_an_operation_that_the_server_refuses_has_not_happened(
    name: str, backend: PostgresqlBackend, postgresql_server: PostgresqlServer
) -> None:
    with refusing(postgresql_server, LASTING[name], 1):
        with pytest.raises(BackendUnavailable, match=r"PostgreSQL at .*: refused"):
            backend.enter(claim("refused"))
        assert not backend.peek("key").holders

        running(backend.enter(claim("refused")))


def test_a_statement_that_takes_longer_than_the_role_allows_leaves_nothing(
    postgresql_server: PostgresqlServer, backend: PostgresqlBackend
) -> None:
    driver = {"options": "-c statement_timeout=50"}
    options = BackendOptions(prefix=backend._prefix, driver=driver)
    with (
        closing(PostgresqlBackend.from_url(postgresql_server.url, options)) as hurried,
        stopping(postgresql_server, "holder", "slow"),
        pytest.raises(BackendUnavailable, match="statement timeout"),
    ):
        hurried.enter(claim("slow"))

    assert not backend.peek("key").holders
    running(backend.enter(claim("a")))


def test_without_a_connection_to_be_had_nothing_has_happened(
    own_postgresql_server: PostgresqlServer,
) -> None:
    server = own_postgresql_server
    server.query("CREATE ROLE worker LOGIN CONNECTION LIMIT 1")
    with closing(PostgresqlBackend.from_url(server.url, BackendOptions())) as owner:
        owner.now()
        for statement in grants("worker"):
            server.query(statement)
        url = server.url.replace("dlock@", "worker@")
        address, _ = address_of(url, {})
        with closing(PostgresqlBackend.from_url(url, BackendOptions())) as worker:
            with (
                psycopg.connect(address),
                pytest.raises(BackendUnavailable, match="too many connections"),
            ):
                worker.enter(claim("a"))
            assert not owner.peek("key").holders

            running(worker.enter(claim("a")))
