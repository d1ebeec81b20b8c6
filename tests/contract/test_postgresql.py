"""The store on a PostgreSQL server: the contract, who makes the tables, and what is kept open."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from celery_dlock.core.state import Busy, Left, Outcome
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.postgresql import connection
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.testing.contract import NoteStoreContract, SharedStoreContract
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken
from tests.contract.postgresql_store import Rotation
from tests.contract.suites import Notes, OneOfEach, SharedStorage
from tests.services.pgbouncer import PgBouncer
from tests.services.postgresql import PostgresqlServer
from tests.services.require import require
from tests.services.until import until

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]

Open = Callable[..., PostgresqlBackend]


class TestPostgresql(SharedStorage, Notes):
    backend_class = PostgresqlBackend

    @pytest.fixture
    def url(self, postgresql_server: PostgresqlServer) -> str:
        return postgresql_server.url


@pytest.mark.server("pgbouncer")
class TestThroughPgBouncer(OneOfEach, SharedStoreContract, NoteStoreContract):
    backend_class = PostgresqlBackend

    @pytest.fixture
    def url(self, pgbouncer: PgBouncer) -> str:
        return pgbouncer.url


@pytest.mark.server("pgbouncer")
@pytest.mark.parametrize("mode", ["session", "statement"])
def test_a_pooler_of_another_mode_does(
    mode: str, opened: Open, own_postgresql_server: PostgresqlServer
) -> None:
    with PgBouncer(require("pgbouncer"), own_postgresql_server, mode) as pooler:
        store = opened(pooler.url)  # it makes the tables, too
        running(store.enter(claim("a")))
        park(store, "b")
        assert woken(store.leave(claim("a"), Outcome.DONE)) == ["b"]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens stores that end with the test."""
    with ExitStack() as stack:

        def open_store(url: str, **options: object) -> PostgresqlBackend:
            names = {"prefix": f"test-{uuid.uuid4().hex}", **options}
            backend = PostgresqlBackend.from_url(url, BackendOptions(**names))  # type: ignore[arg-type]
            return stack.enter_context(closing(backend))

        yield open_store


@pytest.fixture
def backend(opened: Open, own_postgresql_server: PostgresqlServer) -> PostgresqlBackend:
    return opened(own_postgresql_server.url)


def connections(server: PostgresqlServer, where: str = "true") -> int:
    ours = f"application_name = 'celery-dlock' AND {where}"
    return int(server.query(f"SELECT count(*) FROM pg_stat_activity WHERE {ours}"))


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


def test_by_itself_it_goes_by_the_servers_clock(
    backend: PostgresqlBackend, own_postgresql_server: PostgresqlServer
) -> None:
    seconds = "SELECT floor(extract(epoch FROM clock_timestamp()))"
    before = int(own_postgresql_server.query(seconds))
    assert before <= backend.now() / 1e6 <= int(own_postgresql_server.query(seconds)) + 1


def test_processes_that_are_the_first_at_once_make_the_tables_once(
    opened: Open, own_postgresql_server: PostgresqlServer
) -> None:
    url = f"{own_postgresql_server.url}?options=-c%20default_transaction_read_only%3Don"
    stores = [opened(url, prefix="same") for _ in range(8)]
    barrier, verdicts = threading.Barrier(len(stores)), list[object]()

    def enter(number: int) -> None:
        barrier.wait()
        verdicts.append(stores[number].enter(claim(f"task {number}")).verdict)

    threads = [threading.Thread(target=enter, args=(n,)) for n in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(verdicts) == len(stores)
    assert sum(isinstance(verdict, Busy) for verdict in verdicts) == len(stores) - 1
    assert own_postgresql_server.query("SELECT number FROM dlock.version") == "1"


def test_who_only_looks_is_told_that_there_are_no_tables_and_makes_none(
    backend: PostgresqlBackend, own_postgresql_server: PostgresqlServer
) -> None:
    assert "has no schema dlock" in backend.missing()
    assert own_postgresql_server.query("SELECT to_regnamespace('dlock') IS NULL") == "t"

    running(backend.enter(claim("a")))
    assert backend.missing() == ""


def test_a_role_that_may_make_no_tables_uses_those_that_another_has_made(
    opened: Open, own_postgresql_server: PostgresqlServer
) -> None:
    url = own_postgresql_server.url.replace("dlock@", "worker@")
    own_postgresql_server.query("CREATE ROLE worker LOGIN")
    own_postgresql_server.query(f"REVOKE CREATE ON DATABASE {url.rpartition('/')[2]} FROM PUBLIC")
    with pytest.raises(ConfigurationError, match="may not make them"):
        opened(url).enter(claim("a"))

    for statement in PostgresqlBackend.tables(role="worker"):
        own_postgresql_server.query(statement)
    store = opened(url)
    running(store.enter(claim("a")))
    park(store, "b")

    assert woken(store.leave(claim("a"), Outcome.DONE)) == ["b"]
    assert store.note("key", 1, {"name": b"text"})
    assert store.swap("name", None, b"text", 1_000_000) == b"text"
    store.sweep()


@pytest.mark.parametrize("path", ['"$user", public', "shop,dlock", '"dlock"'])
def test_a_role_that_would_take_tables_of_the_application_for_ours_is_refused(
    path: str, opened: Open, own_postgresql_server: PostgresqlServer
) -> None:
    server = own_postgresql_server
    server.query(f"ALTER ROLE dlock SET search_path = {path}")
    with pytest.raises(ConfigurationError, match="ALTER ROLE dlock SET search_path = public, or"):
        opened(server.url).enter(claim("a"))
    assert server.query("SELECT to_regnamespace('dlock') IS NULL") == "t"

    server.query("ALTER ROLE dlock SET search_path = public")
    running(opened(server.url).enter(claim("a")))

    server.query(f"ALTER ROLE dlock SET search_path = {path}")
    with pytest.raises(ConfigurationError, match=r"search_path of the role dlock, .* role$"):
        opened(server.url).enter(claim("a"))


def test_tables_of_another_version_are_refused(
    backend: PostgresqlBackend, own_postgresql_server: PostgresqlServer, opened: Open
) -> None:
    backend.now()
    own_postgresql_server.query("UPDATE dlock.version SET number = 2")

    with pytest.raises(ConfigurationError, match=r"version 2 .* reads version 1"):
        opened(own_postgresql_server.url).now()


def test_tables_that_were_dropped_are_made_again(
    backend: PostgresqlBackend, own_postgresql_server: PostgresqlServer
) -> None:
    running(backend.enter(claim("a")))
    own_postgresql_server.query("DROP SCHEMA dlock CASCADE")
    with pytest.raises(BackendUnavailable, match="does not exist"):
        backend.enter(claim("a"))

    running(backend.enter(claim("a")))


def test_a_sequence_that_is_behind_goes_on_from_the_clock(
    backend: PostgresqlBackend, own_postgresql_server: PostgresqlServer
) -> None:
    def set_back(number: int) -> None:
        own_postgresql_server.query(f"SELECT setval('dlock.number', {number})")

    backend.now()
    set_back(1000)
    before = running(backend.enter(claim("a", key="1"))).token
    set_back(1)

    tokens = [running(backend.enter(claim("a", key=key))).token for key in ("2", "3")]
    park(backend, "b", key="2")
    backend.leave(claim("a", key="2"), Outcome.DONE)
    tokens.append(running(backend.enter(claim("b", key="2", wait=QUEUE))).token)

    assert [before, *tokens] == sorted({before, *tokens})


def test_one_connection_is_kept_and_closed_when_nobody_has_used_it_for_a_while(
    backend: PostgresqlBackend,
    own_postgresql_server: PostgresqlServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    barrier = threading.Barrier(4)

    def enter(number: int) -> None:
        barrier.wait()
        for turn in range(20):
            backend.enter(claim(f"task {turn}", key=f"key {number}"))

    threads = [threading.Thread(target=enter, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until("one is left", lambda: connections(own_postgresql_server) == 1)
    assert not connections(own_postgresql_server, "state <> 'idle'")

    backend.close()
    until("none is left", lambda: connections(own_postgresql_server) == 0)
    monkeypatch.setattr(connection, "IDLE", 0.2)
    backend.now()
    until("it is closed by itself", lambda: connections(own_postgresql_server) == 0)
    backend.now()


def test_forty_threads_share_a_few_connections(
    backend: PostgresqlBackend,
    own_postgresql_server: PostgresqlServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "PATIENCE", 0)
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", 600)
    shared, most = backend._connections(), connection.MOST
    shared.store()
    stops = [connection.Statement(b"SELECT pg_advisory_xact_lock_shared(1)")]
    with ThreadPoolExecutor(40) as pool:
        with psycopg.connect(own_postgresql_server.url) as holder:
            holder.execute("SELECT pg_advisory_xact_lock(1)")
            answers = [pool.submit(shared.fly, stops) for _ in range(40)]
            until("the others wait", lambda: len(shared._mutex._waiters) == 40 - most)  # type: ignore[attr-defined]
            assert connections(own_postgresql_server) <= most
        assert all(len(answer.result()) == 1 for answer in answers)


def test_after_the_end_a_connection_is_closed_when_its_flight_has_ended(
    backend: PostgresqlBackend, own_postgresql_server: PostgresqlServer
) -> None:
    shared = backend._connections()
    shared.store()
    stops = [connection.Statement(b"SELECT pg_advisory_xact_lock_shared(1)")]
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(own_postgresql_server.url) as holder:
            holder.execute("SELECT pg_advisory_xact_lock(1)")
            answer = pool.submit(shared.fly, stops)
            until("it waits", lambda: connections(own_postgresql_server, "state <> 'idle'"))
            shared.end()
        assert len(answer.result()) == 1
    until("none is left", lambda: connections(own_postgresql_server) == 0, timeout=30)


@contextmanager
def locked_table(server: PostgresqlServer) -> Iterator[None]:
    """A table of the store is altered meanwhile."""
    with psycopg.connect(server.url) as owner:
        owner.execute("LOCK TABLE dlock.holder IN ACCESS EXCLUSIVE MODE")
        yield


def test_the_server_waits_for_a_locked_table_no_longer_than_its_client(
    backend: PostgresqlBackend,
    own_postgresql_server: PostgresqlServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celery_dlock.stores.consensus.commit.COMMIT_TIMEOUT", 0)
    running(backend.enter(claim("a")))
    asks = (
        lambda: backend.enter(claim("b", key="other")),
        lambda: backend.leave(claim("a"), Outcome.DONE),
        lambda: backend.renew([claim("a")]),
        lambda: backend.peek("key"),
    )
    with ThreadPoolExecutor() as pool, locked_table(own_postgresql_server):
        answers = [pool.submit(ask) for ask in asks]
        for answer in answers:
            with pytest.raises(BackendUnavailable, match="lock timeout"):
                answer.result()
        until("they have ended", lambda: connections(own_postgresql_server) <= 1)


def test_what_the_server_does_not_answer_counts_among_the_connections_of_a_process(
    backend: PostgresqlBackend,
    own_postgresql_server: PostgresqlServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend.now()
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", 0.1)
    with locked_table(own_postgresql_server):
        for number in range(2 * connection.MOST):
            with pytest.raises(BackendUnavailable):
                backend.enter(claim("a", key=f"{number}"))
        with pytest.raises(BackendUnavailable, match=f"{connection.MOST} requests are unanswered"):
            backend.now()
        assert connections(own_postgresql_server) == connection.MOST

    monkeypatch.undo()
    until("they end", lambda: not connections(own_postgresql_server, "state <> 'idle'"))
    backend.now()
    until("one is kept", lambda: connections(own_postgresql_server) == 1)


def test_a_release_does_not_stand_in_line_behind_those_that_wait_for_it(
    backend: PostgresqlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_dlock.stores.consensus.commit.COMMIT_TIMEOUT", 600)
    running(backend.enter(claim("a")))

    with ThreadPoolExecutor() as pool, backend._mutexes.at("key", 1):
        left = pool.submit(backend.leave, claim("a"), Outcome.DONE)
        until("it is released", left.done)


def test_a_forked_child_has_a_connection_of_its_own(
    backend: PostgresqlBackend, own_postgresql_server: PostgresqlServer
) -> None:
    running(backend.enter(claim("a")))
    child = os.fork()
    if child == 0:
        seen = isinstance(backend.enter(claim("b")).verdict, Busy)
        os._exit(0 if seen else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert backend.leave(claim("a"), Outcome.OVER).verdict == Left(carried=False)


def test_a_password_that_has_changed_is_read_at_the_next_connection(
    opened: Open,
    own_postgresql_server: PostgresqlServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rotation = Rotation(own_postgresql_server)
    passwords, services = tmp_path / "passwords", tmp_path / "services"
    monkeypatch.setenv("PGSERVICEFILE", str(services))

    def change() -> None:
        rotation.change()
        passwords.write_text(f"*:*:*:*:{rotation.password}")
        passwords.chmod(0o600)
        services.write_text(f"[locks]\npassword={rotation.password}")

    change()
    url = rotation.url
    fixed = opened(url.replace("@", f":{rotation.password}@"))
    stores = [
        opened(url, driver={"password": lambda: rotation.password}),
        opened(f"{url}?passfile={passwords}"),
        opened(f"{url}?service=locks"),
    ]
    for store in (fixed, *stores):
        running(store.enter(claim("a")))
    change()

    for store in stores:
        assert store.leave(claim("a"), Outcome.OVER).verdict == Left(carried=False)
    with pytest.raises(BackendUnavailable, match="authentication failed"):
        fixed.enter(claim("a"))


def test_while_nobody_knows_the_password_the_store_is_unavailable(opened: Open) -> None:
    def password() -> str:
        raise RuntimeError("no token")

    store = opened("postgresql://shop@127.0.0.1/shop", driver={"password": password})
    with pytest.raises(BackendUnavailable, match="no token"):
        store.enter(claim("a"))


def test_an_unknown_option_of_the_url_is_refused_without_a_password() -> None:
    for url in ("postgresql://u:secret@[h/db", "postgresql://u:secret@h/db?nonsense=secret"):
        with pytest.raises(ConfigurationError) as caught:
            PostgresqlBackend.from_url(url, BackendOptions())
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_refused_password_is_in_no_message(
    opened: Open, own_postgresql_server: PostgresqlServer
) -> None:
    url = own_postgresql_server.url.replace("dlock@", "nobody:secret@")
    with pytest.raises(BackendUnavailable) as caught:
        opened(url).enter(claim("a"))
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"
