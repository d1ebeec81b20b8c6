"""What is particular to a library or a driver: its settings, its proxies, its wrong objects."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from io import StringIO
from typing import Any

import psycopg
import psycopg2
import pymysql
import pytest
from psycopg.rows import dict_row
from psycopg2.extras import LoggingConnection, RealDictCursor
from pymysql.constants import CLIENT
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.dialects.oracle.base import OracleDialect
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from celery_dlock import ConfigurationError, StaleFencingToken, fencing
from tests.fencing.clients import mysqlclient, over, parameters
from tests.fencing.conftest import Database, Open

pytestmark = pytest.mark.once


def fence_all(connection: Any, name: str) -> None:
    """Passes, is refused, and is told what is new and what is not."""
    fencing.admit(connection, resource=name, fencing_token=7, owner="a")
    fencing.admit(connection, resource=name, fencing_token=7, owner="a")
    with pytest.raises(StaleFencingToken) as refused:
        fencing.admit(connection, resource=name, fencing_token=7, owner="b")
    assert refused.value.seen == 7
    assert fencing.once(connection, name, resource="shop")
    assert not fencing.once(connection, name, resource="shop")


def test_a_script_of_sqlite3_ends_the_fence(database: Database, name: str) -> None:
    with closing(sqlite3.connect(make_url(database("sqlite")).database or "")) as db:
        assert fencing.once(db, name, resource="shop")
        db.executescript("SELECT 1")
        db.rollback()
        assert not fencing.once(db, name, resource="shop")


@contextmanager
def engine_of(url: str, **options: Any) -> Iterator[Engine]:
    engine = create_engine(url, poolclass=NullPool, **options)
    yield engine
    engine.dispose()


@pytest.mark.server("postgresql")
class TestPsycopg:
    @pytest.fixture
    def url(self, database: Database) -> str:
        return database("postgresql").replace("+psycopg", "")

    def test_factories_of_rows_and_cursors_do_not_matter(self, url: str, name: str) -> None:
        with psycopg.connect(url, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as db:
            fence_all(db, name)
            db.rollback()

    def test_an_open_transaction_in_autocommit_mode(self, url: str, name: str) -> None:
        with psycopg.connect(url, autocommit=True) as db, db.transaction(force_rollback=True):
            fence_all(db, name)

    def test_a_pipeline(self, url: str, name: str) -> None:
        with psycopg.connect(url, autocommit=True) as db, db.pipeline():
            with db.transaction(force_rollback=True):
                db.execute("SELECT 1")
                fence_all(db, name)
            db.execute("SELECT 1")
            with pytest.raises(ConfigurationError, match=r"connection.transaction\(\)"):
                fencing.once(db, name, resource="shop")

    def test_statements_that_the_server_has_prepared(self, url: str, name: str) -> None:
        with psycopg.connect(url, prepare_threshold=0) as db:
            for token in (1, 40_000, 3_000_000_000, 2**62):
                fencing.admit(db, resource=name, fencing_token=token, owner="a")
            db.rollback()


@pytest.mark.server("postgresql")
class TestPsycopg2:
    @pytest.fixture
    def url(self, database: Database) -> str:
        return database("postgresql").replace("+psycopg", "")

    def test_factories_of_connections_and_cursors_do_not_matter(self, url: str, name: str) -> None:
        log = StringIO()
        options = {"connection_factory": LoggingConnection, "cursor_factory": RealDictCursor}
        with closing(psycopg2.connect(url, **options)) as db:
            db.initialize(log)
            fence_all(db, name)

    def test_an_open_transaction_in_autocommit_mode(self, url: str, name: str) -> None:
        with closing(psycopg2.connect(url)) as db:
            db.autocommit = True
            with db:
                fence_all(db, name)
                db.rollback()
            with pytest.raises(ConfigurationError, match="with connection:"):
                fencing.once(db, name, resource="shop")

    def test_a_transaction_that_was_begun_by_hand(self, url: str, name: str) -> None:
        with closing(psycopg2.connect(url)) as db, db.cursor() as cursor:
            db.autocommit = True
            cursor.execute("BEGIN")
            fence_all(db, name)
            db.commit()
            cursor.execute("ROLLBACK")
            with db:
                assert fencing.once(db, name, resource="shop")
                db.rollback()
            with pytest.raises(ConfigurationError, match="with connection:"):
                fencing.once(db, name, resource="shop")

    def test_what_has_failed_is_said_by_the_driver(self, url: str, name: str) -> None:
        with closing(psycopg2.connect(url)) as db, db.cursor() as cursor:
            with pytest.raises(psycopg2.errors.DivisionByZero):
                cursor.execute("SELECT 1 / 0")
            with pytest.raises(psycopg2.errors.InFailedSqlTransaction):
                fencing.once(db, name, resource="shop")


MYSQL_OPTIONS: list[dict[str, Any]] = [
    {},
    {"client_flag": CLIENT.FOUND_ROWS},
    {"client_flag": CLIENT.IGNORE_SPACE},
    {"cursorclass": "DictCursor"},
    {"cursorclass": "SSCursor"},
    {"charset": "latin1"},
    {"sql_mode": ""},
    {"sql_mode": "ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH"},
    {"sql_mode": "SIMULTANEOUS_ASSIGNMENT"},
    {"sql_mode": "ORACLE,EMPTY_STRING_IS_NULL"},
]

Connect = Callable[..., AbstractContextManager[Any]]


@pytest.mark.server("mariadb")
class TestMySQL:
    @pytest.fixture(params=["pymysql", "mysqlclient"])
    def connect(self, request: pytest.FixtureRequest, database: Database) -> Connect:
        driver = pymysql if request.param == "pymysql" else mysqlclient()
        where = parameters(make_url(database("mariadb")))

        def connect(cursorclass: str = "Cursor", **options: Any) -> AbstractContextManager[Any]:
            cursors = getattr(driver.cursors, cursorclass)
            return closing(driver.connect(**where, cursorclass=cursors, **options))

        return connect

    @pytest.mark.parametrize("options", MYSQL_OPTIONS)
    def test_settings_of_a_connection_do_not_matter(
        self, connect: Connect, name: str, options: dict[str, Any]
    ) -> None:
        with connect(**options) as db:
            fence_all(db, f"{name} 🦀")
            fence_all(db, "é" * 500 + name[-20:])

    def test_a_new_table_ends_the_fence(self, connect: Connect, name: str) -> None:
        with connect() as db, db.cursor() as cursor:
            assert fencing.once(db, name, resource="shop")
            cursor.execute("CREATE TABLE IF NOT EXISTS made_under_the_fence (number INTEGER)")
            db.rollback()
            assert not fencing.once(db, name, resource="shop")

    def test_an_open_transaction_in_autocommit_mode(self, connect: Connect, name: str) -> None:
        with connect(autocommit=True) as db:
            db.begin()
            fence_all(db, name)
            db.rollback()
            with pytest.raises(ConfigurationError, match=r"begin\(\)"):
                fencing.once(db, name, resource="shop")

    def test_a_transaction_that_was_begun_by_hand(self, connect: Connect, name: str) -> None:
        with connect(autocommit=True) as db, db.cursor() as cursor:
            cursor.execute("SET autocommit = 0")
            fence_all(db, name)
            db.rollback()
            cursor.execute("SET autocommit = 1")
            with pytest.raises(ConfigurationError, match=r"begin\(\)"):
                fencing.once(db, name, resource="shop")


class TestSQLAlchemy:
    @pytest.fixture
    def url(self, database: Database) -> str:
        return database("sqlite")

    def test_a_scoped_session(self, url: str, name: str) -> None:
        with engine_of(url) as engine:
            session = scoped_session(sessionmaker(engine))
            fence_all(session, name)
            session.remove()

    def test_what_waits_in_a_session_is_not_flushed_by_the_fence(self, url: str, name: str) -> None:
        def flushed(*_: object) -> None:
            raise AssertionError("it was flushed")

        with engine_of(url) as engine, Session(engine) as session:
            event.listen(session, "before_flush", flushed)
            fence_all(session, name)

    def test_begin_is_said_by_an_event(self, url: str, name: str) -> None:
        """SQLAlchemy's recipe for SQLite: pysqlite says no BEGIN by itself, an event does."""
        with engine_of(url) as engine:

            @event.listens_for(engine, "connect")
            def quiet(connection: sqlite3.Connection, _: object) -> None:
                connection.isolation_level = None

            @event.listens_for(engine, "begin")
            def begin(connection: Any) -> None:
                connection.exec_driver_sql("BEGIN IMMEDIATE")

            with engine.connect() as connection:
                fence_all(connection, name)
                connection.rollback()
                assert fencing.once(connection, name, resource="shop")

    @pytest.mark.parametrize("library", ["connection", "session"])
    @pytest.mark.parametrize(
        ("server", "driver"),
        [
            pytest.param(server, driver, marks=pytest.mark.server(server))
            for server, driver in (
                ("postgresql", "postgresql+psycopg"),
                ("postgresql", "postgresql+psycopg2"),
                ("mariadb", "mysql+pymysql"),
                ("mariadb", "mysql+mysqldb"),
            )
        ],
    )
    def test_autocommit_of_a_connection(
        self, database: Database, clients: Open, name: str, library: str, server: str, driver: str
    ) -> None:
        if driver == "mysql+mysqldb":
            mysqlclient()
        client = clients(library, over(driver, database(server)))
        fence_all(client.fenced, name)
        client.rollback()
        if library == "connection":
            client.fenced.execution_options(isolation_level="AUTOCOMMIT")
        else:
            client.fenced.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            client.once(name)

    def test_a_driver_that_is_not_known_is_believed(self, url: str, name: str) -> None:
        class Wrapped:
            def __init__(self) -> None:
                self._real = sqlite3.connect(make_url(url).database or "")

            def __getattr__(self, attribute: str) -> Any:
                return getattr(self._real, attribute)

        with engine_of(url, creator=Wrapped) as engine, engine.connect() as connection:
            fence_all(connection, name)
            connection.rollback()
        with engine_of(url, creator=Wrapped) as engine, engine.connect() as connection:
            by_itself = connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
                fencing.once(by_itself, name, resource="shop")

    def test_a_database_that_has_no_dialect_here(self, url: str) -> None:
        with engine_of(url) as engine, engine.connect() as connection:
            connection.dialect = OracleDialect()
            with pytest.raises(ConfigurationError, match="and not oracle"):
                fencing.once(connection, "event", resource="shop")

    def test_what_is_no_open_connection(self, url: str) -> None:
        with engine_of(url) as engine, closing(engine.raw_connection()) as raw:
            driver: Any = raw.driver_connection
            makers = (engine, sessionmaker(engine), raw)
            for wrong in (*makers, raw.cursor(), sqlite3.Cursor(driver), url, None):
                with pytest.raises(ConfigurationError, match="not a cursor or an engine"):
                    fencing.once(wrong, "event", resource="shop")

    @pytest.mark.server("postgresql")
    def test_an_async_session_runs_it_inside(self, database: Database, name: str) -> None:
        async def body() -> None:
            engine = create_async_engine(database("postgresql"), poolclass=NullPool)
            async with AsyncSession(engine) as session, engine.connect() as connection:
                for outside in (session, connection):
                    with pytest.raises(ConfigurationError, match=r"run_sync\(fencing.admit\)"):
                        fencing.once(outside, name, resource="shop")
                await session.run_sync(fence_all, name)
                await session.rollback()
            await engine.dispose()
            engine = create_async_engine(engine.url, isolation_level="AUTOCOMMIT")
            async with engine.connect() as connection:
                with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
                    await connection.run_sync(fencing.once, name, resource="shop")
            await engine.dispose()

        asyncio.run(body())
