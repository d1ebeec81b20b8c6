"""What the doctor finds in a PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from celery_dlock import BackendUnavailable, lock
from celery_dlock.ops.doctor import postgresql
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import judged
from celery_dlock.ops.doctor.postgresql import CHECKS, Server
from celery_dlock.stores.postgresql.schema import grants
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from tests.fencing.clients import DjangoClient
from tests.inspection.patients import bad, found, patient
from tests.services.postgresql import PostgresqlServer, PostgresqlStandby
from tests.services.require import require
from tests.services.until import until

pytestmark = [pytest.mark.server("postgresql"), pytest.mark.once]

#: The servers of the tests do not wait for the disk.
UNSYNCED = {"postgresql-fsync": "broken", "postgresql-idle-in-transaction": "weak"}

SOUND = Server(
    number=150000,
    version="15.0",
    syncs=True,
    commits="on",
    standby_names="",
    is_standby=False,
    standbys=0,
    may_create=True,
    isolation="read committed",
    idle_timeout="1min",
    shadows=False,
)


def test_a_server_that_does_not_wait_for_the_disk_is_found_before_and_after_its_first_use(
    own_postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    server = own_postgresql_server
    with patient(tmp_path, dlock_url=server.url) as app:
        assert bad(examine(app)) == {**UNSYNCED, "postgresql-tables": "weak"}
        assert server.query("SELECT to_regnamespace('dlock')") == ""  # it changes nothing
        with lock("order:1", app=app):
            assert bad(examine(app)) == UNSYNCED


def test_tables_that_are_missing_or_of_another_release_are_found(
    own_postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    server = own_postgresql_server
    server.query("CREATE ROLE worker LOGIN")
    worker = server.url.replace("dlock@", "worker@")
    assert found(tmp_path, dlock_url=worker) == {**UNSYNCED, "postgresql-tables": "broken"}

    with patient(tmp_path, dlock_url=server.url) as app, lock("order:1", app=app):
        pass
    server.query("UPDATE dlock.version SET number = 2")
    assert found(tmp_path, dlock_url=server.url) == {**UNSYNCED, "postgresql-tables": "broken"}


def test_a_role_without_a_right_is_told_what_grants_it(
    own_postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    server = own_postgresql_server
    server.query("CREATE ROLE worker LOGIN")
    for statement in PostgresqlBackend.tables():
        server.query(statement)
    with patient(tmp_path, dlock_url=server.url.replace("dlock@", "worker@")) as app:
        for grant in grants("worker")[:3]:  # anybody may call a function
            rights = [finding for finding in examine(app) if finding.check == "postgresql-rights"]
            assert [finding.severity for finding in rights] == ["broken"]
            assert "dlock init --sql --role" in rights[0].fix
            with pytest.raises(BackendUnavailable, match=r"GRANT of `.* init --sql --role worker`"):
                lock("order:1", app=app).acquire()
            server.query(grant)
        assert bad(examine(app)) == UNSYNCED


def test_the_database_of_a_django_project_is_examined_at_its_own_address(
    own_postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    with DjangoClient(make_url(own_postgresql_server.url)) as client:
        url = f"django://{client.fenced.alias}"
        with patient(tmp_path, dlock_url=url) as app:
            findings = examine(app)
    assert bad(findings) == {**UNSYNCED, "postgresql-tables": "weak"}
    where = f"store 127.0.0.1:{own_postgresql_server.port}/postgres"
    assert {finding.where for finding in findings} == {where}
    with patient(tmp_path, dlock_url=url) as app:
        (finding,) = examine(app)
    assert finding.check == "settings"
    assert "an alias of DATABASES" in finding.found


@pytest.mark.parametrize("kept_by", ["a session", "a writer", "a prepared transaction", "a slot"])
def test_what_keeps_deleted_rows_for_long_is_found(
    kept_by: str,
    own_postgresql_server: PostgresqlServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = own_postgresql_server
    monkeypatch.setattr(postgresql, "OLD", 3)
    server.query("ALTER SYSTEM SET max_prepared_transactions = 1")
    server.query("ALTER DATABASE postgres SET idle_in_transaction_session_timeout = '1min'")
    server.restart()
    with psycopg.connect(server.url, application_name="report") as report:
        if kept_by == "a session":
            report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            report.execute("SELECT 1")
        elif kept_by == "a writer":
            report.execute("SELECT pg_current_xact_id()")
        elif kept_by == "a prepared transaction":
            report.execute("SELECT pg_current_xact_id()")
            report.execute("PREPARE TRANSACTION 'report'")
        else:
            server.query("SELECT pg_create_physical_replication_slot('report', true)")
            with PostgresqlStandby(require("postgresql").parent, server) as standby:
                standby.configure(hot_standby_feedback="on", primary_slot_name="report")
                kept = "SELECT count(xmin) FROM pg_replication_slots"
                until("the slot keeps rows", lambda: server.query(kept) == "1")
        with patient(tmp_path, dlock_url=server.url) as app:
            assert "postgresql-snapshot" not in bad(examine(app))
            for _ in range(4):
                server.query("SELECT pg_current_xact_id()")
            (finding,) = [f for f in examine(app) if f.check == "postgresql-snapshot"]
    assert finding.severity == "weak"
    assert "report" in finding.found


def test_tokens_that_go_back_are_found(
    own_postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    server = own_postgresql_server
    with patient(tmp_path, dlock_url=server.url) as app, lock("order:1", app=app):
        server.query("SELECT setval('dlock.number', 1)")
        assert bad(examine(app)) == UNSYNCED  # the next one is that of the clock
        server.query("UPDATE dlock.holder SET token = 2 * token")
        assert bad(examine(app)) == {**UNSYNCED, "postgresql-tokens": "broken"}
        server.query("UPDATE dlock.holder SET token = token / 2")


@pytest.mark.parametrize(
    ("server", "check"),
    [
        (SOUND, None),
        (replace(SOUND, number=120000, version="12.22"), "postgresql-version"),
        (replace(SOUND, is_standby=True), "postgresql-standby"),
        (replace(SOUND, standbys=1), "postgresql-replication"),
        (replace(SOUND, standbys=1, standby_names="*", commits="local"), "postgresql-replication"),
        (replace(SOUND, standbys=1, standby_names="*"), None),
        (replace(SOUND, shadows=True), "postgresql-search-path"),
        (replace(SOUND, isolation="serializable"), "postgresql-isolation"),
        (replace(SOUND, idle_timeout="0"), "postgresql-idle-in-transaction"),
    ],
)
def test_a_server_that_is_not_as_it_has_to_be_is_found(server: Server, check: str | None) -> None:
    findings = judged(CHECKS, server, "store")
    assert [finding.check for finding in findings] == ([check] if check else [])
