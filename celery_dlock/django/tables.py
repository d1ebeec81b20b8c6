"""Migrations that execute statements of ours, and stand for no model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.db import router as router_of_django
from django.db.migrations.operations.base import Operation

router: Any = router_of_django


class MakeTables(Operation):  # type: ignore[misc]
    """Make tables in the databases that the project's routers allow, and drop them again."""

    reversible = True

    def made_by(self, schema_editor: Any) -> Iterable[str]:
        """The statements that make what is not there."""
        raise NotImplementedError

    def dropped_by(self, schema_editor: Any) -> Iterable[str]:
        """The statements that drop it."""
        raise NotImplementedError

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Django's picture of the models stays as it is."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        self._execute(app_label, schema_editor, self.made_by)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        self._execute(app_label, schema_editor, self.dropped_by)

    def _execute(
        self, app_label: str, schema_editor: Any, statements: Callable[[Any], Iterable[str]]
    ) -> None:
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            for statement in statements(schema_editor):
                schema_editor.execute(statement, params=None)
