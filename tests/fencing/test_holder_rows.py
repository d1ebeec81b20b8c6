"""Locks and data in one PostgreSQL database: a transaction keeps the holder's own row."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from celery import Celery

from celery_dlock import ConfigurationError, LockContended, StaleFencingToken, fencing, lock
from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Busy, Claim, Left, Outcome, Renewed, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.runtime import forget
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.testing.contract.words import claim, park, running, woken
from tests.contract.postgresql_store import stopped, stopping, until_stopped
from tests.fencing.clients import open_client, over
from tests.fencing.faces import LIBRARIES
from tests.services.databases import own_database
from tests.services.postgresql import PostgresqlServer
from tests.services.until import until

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]

LONG = 60_000_000


@dataclass
class Shop:
    """A store, whose clock is set by hand, and connections to its database."""

    server: PostgresqlServer
    stack: ExitStack
    now: int = LONG
    store: PostgresqlBackend = field(init=False)

    def __post_init__(self) -> None:
        options = BackendOptions(prefix=uuid.uuid4().hex, clock=lambda: self.now)
        self.store = PostgresqlBackend.from_url(self.server.url, options)
        self.stack.enter_context(closing(self.store))

    def hold(self, task: str = "a", **options: Any) -> Lease:
        """What *task* is given."""
        asked = claim(task, **options)
        run = running(self.store.enter(asked))
        return self.lease(asked, run.slot, run.token)

    def lease(self, held: Claim, slot: int, token: int) -> Lease:
        return Lease(
            (Term(held, slot, token, 0.0, lambda: 0.0),), "strict", row_of=self.store.row_of
        )

    def writes(self, url: str = "", *, level: str = "read committed") -> psycopg.Connection[Any]:
        """A connection whose next statement begins a transaction."""
        connection = self.stack.enter_context(psycopg.connect(url or self.server.url))
        connection.isolation_level = psycopg.IsolationLevel[level.upper().replace(" ", "_")]
        return connection


@pytest.fixture
def shop(postgresql_server: PostgresqlServer) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(postgresql_server, stack)


@pytest.mark.parametrize("library", [*LIBRARIES, "psycopg2"])
def test_a_lock_of_the_same_database_is_fenced_by_its_own_row_and_no_table(
    library: str, postgresql_server: PostgresqlServer
) -> None:
    app = Celery(set_as_current=False, broker="memory://")
    app.conf.update(dlock_url=postgresql_server.url, dlock_key_prefix=uuid.uuid4().hex)
    app.conf.dlock_fencing_epoch = 1  # of which the row knows nothing
    try:
        with open_client(library, postgresql_server.url) as client:
            with lock(["order:1", "order:2"], app=app) as lease, client.transaction():
                fencing.admit(client.fenced, lease)
                assert client.execute("SELECT to_regclass('dlock_fence')") == [(None,)]
            with (
                pytest.raises(StaleFencingToken, match=r"its lock on .* is over"),
                client.transaction(),
            ):
                fencing.admit(client.fenced, lease)
    finally:
        forget(app)
        app.close()


def test_a_transaction_that_outlives_its_block_is_said_and_keeps_the_key_no_longer_than_it_lasts(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery(set_as_current=False, broker="memory://")
    app.conf.update(dlock_url=shop.server.url, dlock_key_prefix=uuid.uuid4().hex)
    try:
        with shop.writes() as db:  # as a view under ATOMIC_REQUESTS, or a test in a transaction
            with lock("order:1", app=app) as lease:
                fencing.admit(db, lease)
            assert "'order:1' is not released: a transaction" in caplog.text
            with pytest.raises(LockContended):
                lock("order:1", app=app, timeout=0).acquire()
        with lock("order:1", app=app, timeout=0):
            pass
    finally:
        forget(app)
        app.close()


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_while_it_writes_its_lock_is_not_taken_over_and_the_key_goes_on(
    level: str, shop: Shop
) -> None:
    lease, held = shop.hold(), claim("a")
    writes = shop.writes(level=level)
    writes.execute("SELECT 1")
    fencing.admit(writes, lease)

    assert shop.store.renew([held]) == [Renewed(shop.now + held.ttl)]
    park(shop.store, "b")
    shop.now += LONG  # its lease has expired
    swept = shop.store.sweep()
    assert swept.wakes == ()
    assert swept.next_in is not None
    assert isinstance(shop.store.enter(claim("c")).verdict, Busy)
    assert [holder.task for holder in shop.store.peek("key").holders] == ["a"]
    writes.commit()

    shop.now += LONG
    assert [wake.task for wake in shop.store.sweep().wakes] == ["b"]
    assert shop.store.peek("key").holders == ()
    with pytest.raises(StaleFencingToken):
        fencing.admit(writes, lease)


def test_a_key_without_a_queue_is_taken_over_when_the_transaction_has_ended(shop: Shop) -> None:
    lease = shop.hold()
    writes = shop.writes()
    fencing.admit(writes, lease)
    shop.now += LONG

    refused = shop.store.enter(claim("b")).verdict
    writes.rollback()
    later = running(shop.store.enter(claim("b"))).token

    assert isinstance(refused, Busy)
    assert later > lease.fencing_token


def test_the_server_ends_the_transaction_of_a_process_that_has_stopped(shop: Shop) -> None:
    writes = shop.writes()
    fencing.admit(writes, shop.hold())
    writes.execute("SET idle_in_transaction_session_timeout = 100")
    shop.now += LONG

    until("it is taken over", lambda: isinstance(shop.store.enter(claim("b")).verdict, Run))

    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        writes.execute("SELECT 1")


def test_of_a_limit_only_the_slot_that_is_in_use_stays_held(shop: Shop) -> None:
    writes = shop.writes()
    fencing.admit(writes, shop.hold("a", limit=2))
    shop.hold("b", limit=2)
    shop.now += LONG

    running(shop.store.enter(claim("c", limit=2)))

    assert isinstance(shop.store.enter(claim("d", limit=2)).verdict, Busy)
    assert sorted(h.task for h in shop.store.peek("key").holders) == ["a", "c"]


@pytest.mark.parametrize("waits", [False, True], ids=["alone", "with another behind it"])
def test_a_release_that_meets_the_transaction_of_its_own_body_says_so_and_is_repeated(
    waits: bool, shop: Shop
) -> None:
    lease = shop.hold()
    writes = shop.writes()
    fencing.admit(writes, lease)
    if waits:
        park(shop.store, "b")

    with pytest.raises(BackendUnavailable, match=r"a transaction .* is still open"):
        shop.store.leave(claim("a"), Outcome.DONE)
    assert [holder.task for holder in shop.store.peek("key").holders] == ["a"]
    writes.commit()

    reply = shop.store.leave(claim("a"), Outcome.DONE)
    assert reply.verdict == Left(carried=True)
    assert woken(reply) == (["b"] if waits else [])


def test_who_asks_while_another_takes_over_waits_for_that_and_is_refused(shop: Shop) -> None:
    lease = shop.hold()
    writes = shop.writes()
    shop.now += LONG

    with ThreadPoolExecutor() as pool, stopping(shop.server, "holder", "b") as go_on:
        taken = pool.submit(shop.store.enter, claim("b"))
        until_stopped(shop.server)
        admitted = pool.submit(fencing.admit, writes, lease)
        until("it waits for the row", lambda: stopped(shop.server) == 2)
        go_on()
        running(taken.result())
        assert isinstance(admitted.exception(), StaleFencingToken)
        writes.rollback()  # the trigger is dropped now


def test_a_snapshot_that_is_older_than_the_lock_is_refused(shop: Shop) -> None:
    writes = shop.writes(level="repeatable read")
    writes.execute("SELECT 1")

    with pytest.raises(StaleFencingToken, match="a snapshot that is older than the lock"):
        fencing.admit(writes, shop.hold())


def test_a_transaction_that_may_only_read_is_refused_by_the_server(shop: Shop) -> None:
    writes = shop.writes()
    writes.read_only = True

    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        fencing.admit(writes, shop.hold())


@pytest.mark.parametrize("has_store", [False, True], ids=["without a store", "with a store"])
def test_another_database_is_fenced_with_its_tables(has_store: bool, shop: Shop) -> None:
    with own_database(shop.server.url) as driver_url:
        url = over("postgresql", driver_url)
        if has_store:
            with closing(PostgresqlBackend.from_url(url, BackendOptions())) as other:
                other.now()
        lease, writes = shop.hold(), shop.writes(url)
        fencing.create_table(writes)
        fencing.admit(writes, lease)
        writes.commit()

        shop.store.leave(claim("a"), Outcome.OVER)
        fencing.admit(writes, lease)  # nobody has written with a newer token
        newer = shop.hold("b")
        fencing.admit(writes, newer)
        with pytest.raises(StaleFencingToken, match="has seen token"):
            fencing.admit(writes, lease)
        writes.close()


def test_tables_that_were_made_anew_refuse_a_lock_of_the_old_ones(
    own_postgresql_server: PostgresqlServer,
) -> None:
    with ExitStack() as stack:
        old, new = (Shop(own_postgresql_server, stack) for _ in range(2))
        writes = old.writes()
        fencing.create_table(writes)
        writes.commit()
        late = old.hold()

        own_postgresql_server.query("DROP SCHEMA dlock CASCADE")
        newer = new.hold("b")
        assert newer.fencing_token > late.fencing_token
        fencing.admit(writes, newer)
        writes.commit()

        with pytest.raises(StaleFencingToken, match=r"its lock on .* is over"):
            fencing.admit(writes, late)
        writes.rollback()
        fencing.admit(writes, old.hold("c"))  # whose process goes on
        assert writes.execute("SELECT * FROM dlock_fence").fetchall() == []


@pytest.mark.parametrize(
    ("grants", "passes"),
    [
        ((), False),
        (("USAGE ON SCHEMA dlock",), False),
        (("USAGE ON SCHEMA dlock", "SELECT ON dlock.version, dlock.holder"), False),
        (
            (
                "USAGE ON SCHEMA dlock",
                "SELECT ON dlock.version",
                "SELECT, UPDATE ON dlock.holder",
            ),
            True,
        ),
    ],
)
def test_a_role_that_may_not_lock_the_row_is_told_what_it_needs(
    grants: tuple[str, ...], passes: bool, own_postgresql_server: PostgresqlServer
) -> None:
    server = own_postgresql_server
    server.query("CREATE ROLE shop LOGIN")
    with ExitStack() as stack:
        shop = Shop(server, stack)
        lease = shop.hold()
        for grant in grants:
            server.query(f"GRANT {grant} TO shop")
        writes = shop.writes(server.url.replace("dlock@", "shop@"))
        if passes:
            fencing.admit(writes, lease)
        else:
            with pytest.raises(ConfigurationError, match="SELECT, UPDATE ON"):
                fencing.admit(writes, lease)
        assert writes.execute("SELECT 1").fetchone() == (1,)  # the transaction goes on
