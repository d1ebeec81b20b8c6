"""The fence through Django: ``django.db.connection``, or ``connections[alias]``.

Outside ``atomic()`` Django commits every statement. Inside, the fence belongs to the innermost
block: its savepoint takes it back.
"""

from __future__ import annotations

from typing import Any

from celery_dlock.errors import ConfigurationError
from celery_dlock.fencing.guard import Guard, Values, is_a, pyformat
from celery_dlock.fencing.statements import dialect

WRAPPER = "django.db.backends.base.base.BaseDatabaseWrapper"
PROXY = "django.utils.connection.ConnectionProxy"


class DjangoGuard(Guard):
    """The guard for the wrapper that Django has for each alias."""

    @classmethod
    def accepts(cls, connection: Any) -> bool:
        # A cache is behind the same proxy.
        return is_a(connection, WRAPPER) or (
            is_a(connection, PROXY) and hasattr(connection, "in_atomic_block")
        )

    def __init__(self, connection: Any) -> None:
        self.dialect = dialect(connection.vendor)
        self._connection = connection

    def require_transaction(self) -> None:
        connection = self._connection
        if connection.get_autocommit() and not connection.in_atomic_block:
            raise ConfigurationError(
                f"Django commits each statement on {connection.alias!r}: put the fence and the "
                f"write that is fenced into one `with transaction.atomic({connection.alias!r}):`"
            )

    def execute(self, statement: str, values: Values) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(pyformat(statement), values)
        return cursor
