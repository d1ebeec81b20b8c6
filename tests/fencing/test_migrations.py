"""The tables by Django, by Alembic and by hand: each way makes what the fence stands on."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from django.core.management import call_command
from sqlalchemy import make_url

from celery_dlock import ConfigurationError, fencing
from celery_dlock.fencing.statements import dialect
from tests.fencing.clients import Client
from tests.fencing.conftest import Database, Open
from tests.fencing.faces import servers

APP = "celery_dlock_fencing"
PAGE = Path(__file__).parents[2] / "docs/how-to/make-the-fence-tables.rst"

ENV = """
from alembic import context
from sqlalchemy import create_engine

engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""

REVISION = """
from alembic import op
from celery_dlock import fencing

revision, down_revision = "0001", None


def upgrade():
    fencing.create_table(op.get_bind())


def downgrade():
    op.drop_table("dlock_once")
    op.drop_table("dlock_fence")
"""

pytestmark = pytest.mark.once


def it_stands(client: Client, name: str) -> bool:
    try:
        with client.transaction():
            client.admit(name, 1)
            return client.once(name)
    except ConfigurationError:
        return False


@pytest.mark.parametrize("server", servers())
class TestEachWay:
    def test_django(self, server: str, empty_database: Database, clients: Open, name: str) -> None:
        client = clients("django", empty_database(server))
        alias = client.fenced.alias

        call_command("migrate", database=alias, verbosity=0)
        assert it_stands(client, name)
        call_command("migrate", APP, "zero", database=alias, verbosity=0)
        assert not it_stands(client, name)
        call_command("migrate", database=alias, verbosity=0)
        assert it_stands(client, name)

    def test_django_shows_the_statements(
        self, server: str, empty_database: Database, clients: Open
    ) -> None:
        client = clients("django", empty_database(server))
        shown = StringIO()
        call_command(
            "sqlmigrate", APP, "0001", database=client.fenced.alias, stdout=shown, no_color=True
        )
        for statement in dialect(client.fenced.vendor).schema:
            assert f"{statement};" in shown.getvalue()

    def test_alembic(
        self, server: str, empty_database: Database, clients: Open, name: str, tmp_path: Path
    ) -> None:
        url = empty_database(server)
        (tmp_path / "versions").mkdir()
        (tmp_path / "env.py").write_text(ENV)
        (tmp_path / "versions/0001_fence.py").write_text(REVISION)
        config = Config()
        config.set_main_option("script_location", str(tmp_path))
        config.set_main_option("path_separator", "os")
        config.set_main_option("sqlalchemy.url", url)
        client = clients("session", url)

        command.upgrade(config, "head")
        assert it_stands(client, name)
        command.downgrade(config, "base")
        assert not it_stands(client, name)

    def test_the_statements_of_the_documentation(
        self, server: str, empty_database: Database, clients: Open, name: str
    ) -> None:
        client = clients("driver", empty_database(server))
        for statement in documented(server):
            client.execute(statement)
        client.commit()
        assert it_stands(client, name)

    def test_they_are_made_once_and_keep_what_they_hold(
        self, server: str, database: Database, clients: Open, name: str
    ) -> None:
        client = clients("driver", database(server))
        assert it_stands(client, name)
        fencing.create_table(client.fenced)
        client.commit()
        assert not it_stands(client, name)


@pytest.mark.server("postgresql")
@pytest.mark.parametrize("library", ["driver", "session", "django"])
def test_tables_that_are_found_are_not_made_again_in_a_schema_that_comes_first(
    library: str, empty_database: Database, clients: Open, name: str
) -> None:
    url = empty_database("postgresql")
    before = clients("driver", url)
    fencing.create_table(before.fenced)
    before.commit()
    assert it_stands(before, name)
    path = f"ALTER DATABASE {make_url(url).database} SET search_path = first, public"
    before.execute(f"CREATE SCHEMA first; {path}")
    before.commit()

    client = clients(library, url)
    if library == "django":
        call_command("migrate", database=client.fenced.alias, verbosity=0)
    else:
        fencing.create_table(client.fenced)
        client.commit()

    assert not it_stands(client, name)


def documented(server: str) -> list[str]:
    """The statements that the page shows for *server*."""
    title = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MySQL and MariaDB"}[server]
    found = re.search(rf"{title}:\n\n\.\. code-block:: text\n\n((?: .*\n|\n)+)", PAGE.read_text())
    assert found
    return [text.strip() for text in re.split(r";\n\s*(?=CREATE|DO|$)", found[1]) if text.strip()]


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "mariadb"])
def test_the_documentation_shows_the_statements_of_the_code(name: str) -> None:
    shown = [" ".join(re.sub(r"([(])\s+", r"\1", text).split()) for text in documented(name)]
    assert [text.replace(" )", ")") for text in shown] == list(dialect(name).schema)


def test_django_finds_nothing_to_migrate(clients: Open, empty_database: Database) -> None:
    clients("django", empty_database("sqlite"))
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
