"""``dlock init``: who makes the tables of a store on PostgreSQL."""

from __future__ import annotations

import pytest

from tests.cli.operator import operator
from tests.services.postgresql import PostgresqlServer


@pytest.mark.server("postgresql")
@pytest.mark.once
def test_the_tables_are_made_or_printed(own_postgresql_server: PostgresqlServer) -> None:
    server = own_postgresql_server
    server.query("CREATE ROLE worker LOGIN")
    with operator(dlock_url=server.url.replace("dlock@", "worker@")) as worker:
        refused = worker.run("init")
        assert refused.exit_code == 1
        assert "dlock init --sql" in refused.output
        statements = worker.run("init", "--sql", "--role", "worker")
        assert server.query("SELECT to_regnamespace('dlock')") == ""

        server.query(statements.output)

        assert worker.run("init").output == "the tables are there\n"
        assert worker.run("ls").exit_code == 0
    with operator(dlock_url=server.url) as owner:
        server.query("DROP SCHEMA dlock CASCADE")
        assert owner.run("init").exit_code == 0
        assert server.query("SELECT number FROM dlock.version") == "1"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "this store has no tables to make"),
        (("--sql",), "this store has no tables to make"),
        (("--role", "worker"), "--role names a role, for --sql"),
        (("--sql", "--role", "a\nb"), "--role names a role, for --sql"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: tuple[str, ...], says: str) -> None:
    with operator(dlock_url="sqlite:///dlock.db") as desk:
        result = desk.run("init", *arguments)

    assert result.exit_code != 0
    assert says in result.output
