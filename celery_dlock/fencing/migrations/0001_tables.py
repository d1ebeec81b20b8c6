"""Make the tables ``dlock_fence`` and ``dlock_once``; ``sqlmigrate`` shows how."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db import router as router_of_django
from django.db.migrations.operations.base import Operation

from celery_dlock.fencing.statements import FENCE_TABLE, ONCE_TABLE, dialect

router: Any = router_of_django


class CreateTables(Operation):  # type: ignore[misc]
    """The schema of the database's dialect; no model stands for it."""

    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Django's picture of the models stays as it is."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            for statement in dialect(schema_editor.connection.vendor).schema:
                schema_editor.execute(statement, params=None)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            for table in (FENCE_TABLE, ONCE_TABLE):
                schema_editor.execute(f"DROP TABLE {table}", params=None)

    def describe(self) -> str:
        return "Make the tables of the fence"


class Migration(migrations.Migration):  # type: ignore[misc]
    operations = (CreateTables(),)
