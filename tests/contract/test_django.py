"""The store in a Django project's database: what it has beyond the store on PostgreSQL.

That is its address, its migration, and that transactions, requests, tests and forks of the project
do nothing to a lock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import close_old_connections, connections, router, transaction
from django.db.utils import ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import make_url

from celery_dlock.core.state import Busy, Left, Outcome
from celery_dlock.django.store import DjangoBackend, address_of_alias
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from celery_dlock.testing.contract.words import claim, running
from tests.contract.postgresql_store import Rotation
from tests.fencing.clients import DjangoClient, over
from tests.services.databases import own_database
from tests.services.postgresql import PostgresqlServer
from tests.services.until import until

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]

SHOP = "tests.services.django_shop"

#: Opens a store that ends with the test: by ``django://alias``, or by the URL of a server.
Open = Callable[[str], PostgresqlBackend]


@pytest.fixture
def url(postgresql_server: PostgresqlServer) -> Iterator[str]:
    """A database without tables."""
    with own_database(postgresql_server.url) as url:
        yield over("postgresql", url)


@pytest.fixture
def alias(url: str) -> Iterator[str]:
    """What Django calls that database."""
    with DjangoClient(make_url(url)) as client:
        yield client.fenced.alias


@pytest.fixture
def opened() -> Iterator[Open]:
    with ExitStack() as stack:
        options = BackendOptions(prefix=f"test-{uuid.uuid4().hex}")

        def open_store(address: str) -> PostgresqlBackend:
            store = DjangoBackend if address.startswith("django:") else PostgresqlBackend
            return stack.enter_context(closing(store.from_url(address, options)))

        yield open_store


@pytest.fixture
def backend(opened: Open, alias: str) -> PostgresqlBackend:
    return opened(f"django://{alias}")


def query(alias: str, statement: str) -> Any:
    """The first value of the first row, over Django's connection."""
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def has_tables(alias: str) -> bool:
    return bool(query(alias, "SELECT to_regclass('dlock.holder') IS NOT NULL"))


def kept(alias: str) -> int:
    """How many connections the store keeps to the database."""
    ours = "application_name = 'celery-dlock' AND datname = current_database()"
    return int(query(alias, f"SELECT count(*) FROM pg_stat_activity WHERE {ours}"))


class TestTheAddress:
    def test_is_in_the_settings_of_the_alias_and_options_of_the_store_come_first(
        self, alias: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named = {"PASSWORD": "s3cret", "HOST": "db1", "PORT": 5433, "NAME": "shop"}
        options = {"sslmode": "require", "connect_timeout": 9, "assume_role": "clerk"}
        for name, value in {**named, "OPTIONS": options}.items():
            monkeypatch.setitem(connections[alias].settings_dict, name, value)

        address, place = address_of_alias(f"django://{alias}", {"connect_timeout": 1})

        expected = {"password": "s3cret", "host": "db1", "port": "5433", "dbname": "shop"}
        expected |= {"sslmode": "require", "connect_timeout": "1", "user": "dlock"}
        assert expected.items() <= conninfo_to_dict(address).items()
        assert place == "db1:5433/shop"

    @pytest.mark.parametrize("wrong", ["", "s3cret@host", "__class__", "default/"])
    def test_that_is_no_alias_is_refused_with_those_there_are(self, wrong: str, alias: str) -> None:
        with pytest.raises(
            ConfigurationError, match=rf"an alias of DATABASES, .*{alias}"
        ) as caught:
            DjangoBackend.from_url(f"django://{wrong}", BackendOptions())
        assert "s3cret" not in str(caught.value)

    def test_of_another_engine_is_refused_with_a_store_that_needs_no_server(self) -> None:
        with DjangoClient(make_url("sqlite:///:memory:")) as client:
            url = f"django://{client.fenced.alias}"
            with pytest.raises(ConfigurationError, match=r"is sqlite: .* sqlite:///dlock\.db"):
                DjangoBackend.from_url(url, BackendOptions())

    def test_without_settings_of_django_is_refused(self) -> None:
        code = (
            "from celery_dlock.registry import open_backend\n"
            "from celery_dlock.stores.base import BackendOptions\n"
            "try: open_backend('django://default', BackendOptions())\n"
            "except Exception as error: print(type(error).__name__, error)\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert ended.stdout.startswith("ConfigurationError django:// needs the settings of Django")


class TestAnEngine:
    """As those for IAM, Entra or Vault, which ask for a password at each connection."""

    def test_that_has_a_new_password_is_asked_at_the_next_connection(
        self,
        opened: Open,
        own_postgresql_server: PostgresqlServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        rotation = Rotation(own_postgresql_server)
        rotation.change()
        with DjangoClient(make_url(rotation.url)) as client:
            answers(monkeypatch, client.fenced, lambda: rotation.password)
            store = opened(f"django://{client.fenced.alias}")
            running(store.enter(claim("a")))
            rotation.change()

            assert store.leave(claim("a"), Outcome.OVER).verdict == Left(carried=False)

    @pytest.mark.parametrize("error", [RuntimeError, ImproperlyConfigured])
    def test_that_fails_makes_the_store_unavailable(
        self,
        error: type[Exception],
        alias: str,
        backend: PostgresqlBackend,
        opened: Open,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail() -> str:
            raise error("no token")

        answers(monkeypatch, connections[alias], fail)
        with pytest.raises(BackendUnavailable, match="no token"):
            backend.enter(claim("a"))
        if error is RuntimeError:  # it may be away at the start, too
            opened(f"django://{alias}")


def answers(patch: pytest.MonkeyPatch, database: Any, password: Callable[[], str]) -> None:
    """The engine of *database* gives this *password*."""
    engine = type(database)
    asked = engine.get_connection_params
    patch.setattr(
        engine, "get_connection_params", lambda self: {**asked(self), "password": password()}
    )


class TestTheMigration:
    def test_makes_the_tables_and_drops_them(self, alias: str, backend: PostgresqlBackend) -> None:
        call_command("migrate", "celery_dlock_django", database=alias, verbosity=0)
        assert has_tables(alias)
        running(backend.enter(claim("a")))

        call_command("migrate", "celery_dlock_django", "zero", database=alias, verbosity=0)
        assert query(alias, "SELECT to_regnamespace('dlock') IS NULL")

    def test_is_refused_where_it_would_take_the_place_of_the_projects_schema(
        self, alias: str
    ) -> None:
        name = connections[alias].settings_dict["NAME"]
        with connections[alias].cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" SET search_path = dlock, public')
        connections[alias].close()

        with pytest.raises(ProgrammingError, match="ALTER ROLE dlock SET search_path"):
            call_command("migrate", "celery_dlock_django", database=alias, verbosity=0)
        assert query(alias, "SELECT to_regnamespace('dlock') IS NULL")

    def test_drops_nothing_that_is_not_its_own(self, alias: str) -> None:
        call_command("migrate", "celery_dlock_django", database=alias, verbosity=0)
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE TABLE dlock.orders AS SELECT 42 AS number")

        call_command("migrate", "celery_dlock_django", "zero", database=alias, verbosity=0)

        assert query(alias, "SELECT number FROM dlock.orders") == 42
        names = "SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace="
        assert query(alias, f"{names}'dlock'::regnamespace AND relkind <> 't'") == "orders"

    def test_leaves_tables_that_a_worker_has_made(
        self, alias: str, backend: PostgresqlBackend
    ) -> None:
        running(backend.enter(claim("a")))
        call_command("migrate", "celery_dlock_django", database=alias, verbosity=0)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)

    def test_uses_a_schema_that_is_there(self, alias: str) -> None:
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE SCHEMA dlock")
        call_command("migrate", "celery_dlock_django", database=alias, verbosity=0)
        assert has_tables(alias)

    def test_shows_the_statements_of_init(self, alias: str) -> None:
        shown = StringIO()
        names = ("celery_dlock_django", "0001")
        call_command("sqlmigrate", *names, database=alias, stdout=shown, no_color=True)
        assert all(f"{text};" in shown.getvalue() for text in DjangoBackend.tables())

    def test_is_for_those_databases_that_a_router_allows(
        self, alias: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Router:
            def allow_migrate(self, db: str, app_label: str, **_: object) -> bool:
                return app_label != "celery_dlock_django"

        monkeypatch.setattr(router, "routers", [Router()])
        call_command("migrate", "celery_dlock_django", database=alias, verbosity=0)
        assert not has_tables(alias)

    def test_makes_nothing_in_a_database_of_another_engine(self) -> None:
        with DjangoClient(make_url("sqlite:///:memory:")) as client:
            names = {"app_label": "celery_dlock_django", "database": client.fenced.alias}
            call_command("migrate", verbosity=0, **names)
            call_command("migrate", migration_name="zero", verbosity=0, **names)


class TestWhatTheProjectDoes:
    def test_a_rollback_takes_no_lock_back_and_others_see_it_before_the_commit(
        self, alias: str, url: str, backend: PostgresqlBackend, opened: Open
    ) -> None:
        worker = opened(url)
        with transaction.atomic(alias):
            token = running(backend.enter(claim("a"))).token
            assert isinstance(worker.enter(claim("b")).verdict, Busy)
            transaction.set_rollback(True, using=alias)

        assert isinstance(worker.enter(claim("b")).verdict, Busy)
        assert backend.leave(claim("a"), Outcome.OVER).verdict == Left(carried=False)
        with pytest.raises(ProgrammingError), transaction.atomic(alias):
            query(alias, "SELECT no_such_column")
        assert running(worker.enter(claim("b"))).token > token

    def test_the_end_of_a_request_closes_no_connection_of_the_store(
        self, alias: str, backend: PostgresqlBackend
    ) -> None:
        assert connections[alias].settings_dict["CONN_MAX_AGE"] == 0
        running(backend.enter(claim("a")))
        server_process = "SELECT pid FROM pg_stat_activity WHERE application_name = 'celery-dlock'"
        before = query(alias, f"{server_process} AND datname = current_database()")

        close_old_connections()
        connections.close_all()
        running(backend.enter(claim("a")))

        assert query(alias, f"{server_process} AND datname = current_database()") == before

    def test_a_process_that_is_forked_with_the_application_loaded_has_its_own_connection(
        self, alias: str, backend: PostgresqlBackend
    ) -> None:
        running(backend.enter(claim("a")))
        child = os.fork()
        if child == 0:
            with connections[alias]._nodb_cursor() as cursor:  # closes nothing of the parent's
                cursor.execute("SELECT 1")
            refused = isinstance(backend.enter(claim("b")).verdict, Busy)
            os._exit(0 if refused else 1)

        assert os.waitpid(child, 0)[1] == 0
        assert backend.leave(claim("a"), Outcome.OVER).verdict == Left(carried=False)

    def test_two_databases_have_locks_of_their_own(
        self, backend: PostgresqlBackend, opened: Open, postgresql_server: PostgresqlServer
    ) -> None:
        running(backend.enter(claim("a")))
        with own_database(postgresql_server.url) as other, DjangoClient(make_url(other)) as client:
            running(opened(f"django://{client.fenced.alias}").enter(claim("b")))

    def test_an_alias_of_a_read_replica_takes_no_lock(
        self, opened: Open, own_postgresql_server: PostgresqlServer
    ) -> None:
        own_postgresql_server.kill()
        (own_postgresql_server.folder / "data/standby.signal").touch()
        own_postgresql_server.restart()

        with DjangoClient(make_url(own_postgresql_server.url)) as client:
            backend = opened(f"django://{client.fenced.alias}")
            with pytest.raises(BackendUnavailable, match="read-write mode during recovery"):
                backend.enter(claim("a"))


class TestATestDatabase:
    def test_is_followed_copied_and_dropped(self, alias: str, backend: PostgresqlBackend) -> None:
        running(backend.enter(claim("a")))
        creation, name = connections[alias].creation, connections[alias].settings_dict["NAME"]

        creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        running(backend.enter(claim("b")))
        creation.clone_test_db("1", verbosity=0, autoclobber=True)
        running(backend.enter(claim("b")))
        creation.destroy_test_db(suffix="1", verbosity=0)
        assert query(alias, "SELECT task FROM dlock.holder") == "b"
        running(backend.enter(claim("b")))
        assert kept(alias) == 1
        creation.destroy_test_db(name, verbosity=0)

        assert isinstance(backend.enter(claim("b")).verdict, Busy)

    @pytest.mark.parametrize("processes", [1, 2])
    def test_is_what_tests_of_a_project_take_locks_in(
        self, processes: int, url: str, postgresql_server: PostgresqlServer
    ) -> None:
        arguments = ["django", "test", f"{SHOP}.cases", f"--parallel={processes}"]
        ended = run(arguments, url)

        assert ended.returncode == 0, ended.stdout
        assert "Ran 6 tests" in ended.stdout
        name = make_url(url).database
        databases = f"SELECT count(*) FROM pg_database WHERE datname LIKE '%{name}%'"
        assert postgresql_server.query(databases) == "1"


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_worker_runs_the_tasks_of_a_project_with_nothing_but_its_database(
    pool: str, url: str, alias: str, tmp_path: Path
) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE TABLE charge (token BIGINT, began BOOLEAN)")
    # First, as it makes the broker's tables: two processes that do so at once end each other.
    publish = f"from {SHOP}.app import charge; [charge.delay(42) for _ in range(4)]"
    subprocess.run([sys.executable, "-c", publish], env=environment(url), check=True)
    log = tmp_path / "worker.log"
    options = ["-P", pool, "-c", "3", "-l", "INFO"]
    with log.open("w") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", f"{SHOP}.app", "worker", *options],
            env=environment(url),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(
            lambda: f"all are charged:\n{log.read_text()}",
            lambda: query(alias, "SELECT count(*) FROM charge") == 8,
        )
    finally:
        worker.terminate()
        worker.wait(60)

    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT token, began FROM charge ORDER BY ctid")
        rows = cursor.fetchall()
    tokens = [token for token, began in rows if began]
    assert rows == [(token, began) for token in tokens for began in (True, False)]
    assert tokens == sorted(set(tokens))
    until("it has left the database", lambda: kept(alias) == 0)


def environment(url: str) -> dict[str, str]:
    """For a process of the project."""
    return {**os.environ, "SHOP": url, "DJANGO_SETTINGS_MODULE": f"{SHOP}.settings"}


def run(module: list[str], url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", *module]
    return subprocess.run(
        command,
        env=environment(url),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
