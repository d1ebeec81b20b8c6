"""A standby is promoted: what it knows of the locks, with and without synchronous replication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from celery_dlock import StaleFencingToken, fencing
from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Busy, Left, NotHeld, Outcome, Renewed
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.consensus import commit
from celery_dlock.stores.postgresql import connection
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.testing.contract.words import claim, park, running, woken
from tests.services.postgresql import PostgresqlServer, PostgresqlStandby
from tests.services.until import until

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]


@pytest.fixture
def primary(own_postgresql_server: PostgresqlServer) -> PostgresqlServer:
    return own_postgresql_server


@pytest.fixture
def backend(
    primary: PostgresqlServer, postgresql_standby: PostgresqlStandby
) -> Iterator[PostgresqlBackend]:
    """One that goes to whichever of the two takes writes."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{postgresql_standby.port}"
    url = f"postgresql://dlock@{hosts}/postgres?target_session_attrs=read-write"
    with closing(PostgresqlBackend.from_url(url, BackendOptions())) as backend:
        backend.now()
        yield backend


def synchronous(primary: PostgresqlServer) -> None:
    primary.configure(synchronous_standby_names="*")
    waits = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
    until("commits wait for the standby", lambda: primary.query(waits) == "1")


def cut_off(standby: PostgresqlStandby, primary: PostgresqlServer) -> None:
    standby.configure(primary_conninfo="")
    until(
        "it follows no more",
        lambda: primary.query("SELECT count(*) FROM pg_stat_replication") == "0",
    )


def test_a_synchronous_standby_knows_all_that_was_answered(
    backend: PostgresqlBackend, primary: PostgresqlServer, postgresql_standby: PostgresqlStandby
) -> None:
    synchronous(primary)
    token = running(backend.enter(claim("a"))).token
    park(backend, "b")

    primary.kill()
    postgresql_standby.promote()

    assert isinstance(backend.enter(claim("c")).verdict, Busy)
    assert isinstance(backend.renew([claim("a")])[0], Renewed)
    reply = backend.leave(claim("a"), Outcome.DONE)
    assert reply.verdict == Left(carried=True)
    assert woken(reply) == ["b"]
    assert running(backend.enter(claim("b"))).token > token


def test_an_asynchronous_standby_may_not_know_the_holder_and_the_fence_of_its_own_data_does(
    backend: PostgresqlBackend, primary: PostgresqlServer, postgresql_standby: PostgresqlStandby
) -> None:
    cut_off(postgresql_standby, primary)
    asked = claim("a")
    run = running(backend.enter(asked))

    primary.kill()
    postgresql_standby.promote()

    running(backend.enter(claim("b")))  # a second holder
    assert backend.renew([asked]) == [NotHeld()]
    lease = Lease((Term(asked, 0, run.token, 0.0),), "strict", row_of=backend.row_of)
    with psycopg.connect(postgresql_standby.url) as writes, pytest.raises(StaleFencingToken):
        fencing.admit(writes, lease)


def test_without_its_synchronous_standby_no_lock_is_granted(
    backend: PostgresqlBackend,
    primary: PostgresqlServer,
    postgresql_standby: PostgresqlStandby,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    synchronous(primary)
    cut_off(postgresql_standby, primary)
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr(commit, "COMMIT_TIMEOUT", 0.1)

    with pytest.raises(BackendUnavailable):
        backend.enter(claim("a"))
