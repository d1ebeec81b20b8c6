"""Make the schema ``dlock``, unless a worker has made it; ``sqlmigrate`` shows how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import migrations

from celery_dlock.django.tables import MakeTables
from celery_dlock.stores.postgresql.schema import DROPS, FOUND, SCHEMA, missing


class CreateTables(MakeTables):
    """The tables, in databases that are PostgreSQL."""

    def made_by(self, schema_editor: Any) -> Iterable[str]:
        if not _is_postgresql(schema_editor):
            return ()
        if schema_editor.collect_sql:
            return SCHEMA
        with schema_editor.connection.cursor() as cursor:
            cursor.execute(FOUND)
            return missing(*cursor.fetchone())

    def dropped_by(self, schema_editor: Any) -> Iterable[str]:
        return DROPS if _is_postgresql(schema_editor) else ()

    def describe(self) -> str:
        return "Make the tables of the lock store"


def _is_postgresql(schema_editor: Any) -> bool:
    return bool(schema_editor.connection.vendor == "postgresql")


class Migration(migrations.Migration):  # type: ignore[misc]
    operations = (CreateTables(),)
