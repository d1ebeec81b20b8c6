"""Make the tables ``dlock_fence`` and ``dlock_once``; ``sqlmigrate`` shows how."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import migrations

from celery_dlock.django.tables import MakeTables
from celery_dlock.fencing.statements import FENCE_TABLE, ONCE_TABLE, dialect


class CreateTables(MakeTables):
    """The schema of the database's dialect."""

    def made_by(self, schema_editor: Any) -> Iterable[str]:
        return dialect(schema_editor.connection.vendor).schema

    def dropped_by(self, schema_editor: Any) -> Iterable[str]:
        return [f"DROP TABLE {table}" for table in (FENCE_TABLE, ONCE_TABLE)]

    def describe(self) -> str:
        return "Make the tables of the fence"


class Migration(migrations.Migration):  # type: ignore[misc]
    operations = (CreateTables(),)
