"""What the doctor finds in a PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import make_url

from celery_dlock import BackendUnavailable, lock
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import judged
from celery_dlock.ops.doctor.postgresql import CHECKS, Server
from celery_dlock.stores.postgresql.schema import grants
from celery_dlock.stores.postgresql.store import PostgresqlBackend
from tests.fencing.clients import DjangoClient
from tests.inspection.patients import bad, found, patient
from tests.services.postgresql import PostgresqlServer

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
