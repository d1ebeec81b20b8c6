"""Make the schema ``dlock``, unless a worker has made it; ``sqlmigrate`` shows how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import migrations

from celery_dlock.django.tables import MakeTables
from celery_dlock.stores.postgresql.schema import SCHEMA

_FOUND = "SELECT to_regnamespace('dlock') IS NOT NULL, to_regclass('dlock.version') IS NOT NULL"


class CreateTables(MakeTables):
    """The tables, in databases that are PostgreSQL."""

    def made_by(self, schema_editor: Any) -> Iterable[str]:
        return _missing(schema_editor) if _is_postgresql(schema_editor) else ()

    def dropped_by(self, schema_editor: Any) -> Iterable[str]:
        return ("DROP SCHEMA IF EXISTS dlock CASCADE",) if _is_postgresql(schema_editor) else ()

    def describe(self) -> str:
        return "Make the tables of the lock store"


def _is_postgresql(schema_editor: Any) -> bool:
    vendor: str = schema_editor.connection.vendor
    return vendor == "postgresql"


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
