"""Make the schema ``dlock``, unless a worker has made it; ``sqlmigrate`` shows how."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db import router as router_of_django
from django.db.migrations.operations.base import Operation

from celery_dlock.stores.postgresql.schema import SCHEMA

router: Any = router_of_django

_FOUND = "SELECT to_regnamespace('dlock') IS NOT NULL, to_regclass('dlock.version') IS NOT NULL"


class CreateTables(Operation):  # type: ignore[misc]
    """The tables, in databases that are PostgreSQL; no model stands for them."""

    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Django's picture of the models stays as it is."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if _is_for(schema_editor.connection, app_label):
            for statement in _missing(schema_editor):
                schema_editor.execute(statement, params=None)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if _is_for(schema_editor.connection, app_label):
            schema_editor.execute("DROP SCHEMA IF EXISTS dlock CASCADE", params=None)

    def describe(self) -> str:
        return "Make the tables of the lock store"


def _is_for(connection: Any, app_label: str) -> bool:
    allowed: bool = router.allow_migrate(connection.alias, app_label)
    return allowed and connection.vendor == "postgresql"


def _missing(schema_editor: Any) -> tuple[str, ...]:
    """The statements that are still to be executed."""
    if schema_editor.collect_sql:
        return SCHEMA
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(_FOUND)
        has_schema, has_tables = cursor.fetchone()
    if has_tables:
        return ()
    return SCHEMA[1:] if has_schema else SCHEMA


class Migration(migrations.Migration):  # type: ignore[misc]
    operations = (CreateTables(),)
