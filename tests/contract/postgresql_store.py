"""Flights to PostgreSQL that are counted, a server that stops at a row of our tables, passwords."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import psycopg

from celery_dlock.stores.postgresql.connection import Connection, Rows, Statement
from tests.services.postgresql import PostgresqlServer
from tests.services.until import until

#: What a server process waits for that is stopped.
STOP = 4711

_TRIGGER = f"""
CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared({STOP}); RETURN NEW; END $$;
CREATE TRIGGER stop BEFORE INSERT ON dlock.{{table}} FOR EACH ROW
    WHEN (NEW.task = '{{task}}') EXECUTE FUNCTION stop()"""


_REFUSAL = """
CREATE SEQUENCE public.refusals;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('public.refusals') <= {times} THEN
        RAISE EXCEPTION 'refused' USING ERRCODE = '{state}';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON dlock.holder FOR EACH ROW
    WHEN (NEW.task = 'refused') EXECUTE FUNCTION refuse()"""


@dataclass
class Flights:
    """Those of this process, and the statements in each."""

    sent: list[Sequence[Statement]] = field(default_factory=list[Sequence[Statement]])

    def __len__(self) -> int:
        return len(self.sent)

    def has(self, text: bytes) -> bool:
        return any(text in statement.text for flight in self.sent for statement in flight)


@contextmanager
def counted() -> Iterator[Flights]:
    """The flights that are sent meanwhile."""
    flights, fly = Flights(), Connection.fly

    def counting(self: Connection, statements: Sequence[Statement]) -> list[Rows]:
        flights.sent.append(statements)
        return fly(self, statements)

    with mock.patch.object(Connection, "fly", counting):
        yield flights


@contextmanager
def stopping(server: PostgresqlServer, table: str, task: str) -> Iterator[Callable[[], None]]:
    """A server process that inserts a row of *task* into *table* stops before it does.

    Its token is drawn by then. The block gets what lets it go on.
    """
    server.query(_TRIGGER.format(table=table, task=task))
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (STOP,))

        def go_on() -> None:
            connection.execute("SELECT pg_advisory_unlock_all()")

        try:
            yield go_on
        finally:
            go_on()
            server.query("DROP FUNCTION stop CASCADE")


@contextmanager
def refusing(server: PostgresqlServer, state: str, times: int) -> Iterator[None]:
    """The next *times* that a holder called ``refused`` is inserted are errors of this state."""
    server.query(_REFUSAL.format(state=state, times=times))
    try:
        yield
    finally:
        server.query("DROP FUNCTION refuse CASCADE; DROP SEQUENCE public.refusals")


class Rotation:
    """The role ``shop`` of *server*, whose password changes, and ends its connections."""

    def __init__(self, server: PostgresqlServer) -> None:
        self._server = server
        self.password = ""
        rules = server.folder / "data/pg_hba.conf"
        rules.write_text(f"host all shop 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        server.query("CREATE ROLE shop SUPERUSER LOGIN; SELECT pg_reload_conf()")
        until("a password is asked for", lambda: not self._lets_in())

    @property
    def url(self) -> str:
        return self._server.url.replace("dlock@", "shop@")

    def _lets_in(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def change(self) -> None:
        self.password = uuid.uuid4().hex
        self._server.query(f"ALTER ROLE shop PASSWORD '{self.password}'")
        ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename="
        self._server.query(f"{ended}'shop'")


def stopped(server: PostgresqlServer) -> int:
    """How many server processes wait for a lock of any kind."""
    return int(server.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


def until_stopped(server: PostgresqlServer) -> None:
    until("a server process has stopped", lambda: stopped(server) == 1)
