"""What guards the writes of one open connection; each library it may be of adds a subclass.

Everything runs in the transaction that the caller has opened and will commit, because a check
that is not part of the write proves nothing about it. The driver's errors pass through as they
are: the caller's transaction handling knows them. Only a missing table is told apart.

A library is imported only after an object of it was seen, which is recognised by its type's name.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

from celery_dlock.errors import ConfigurationError
from celery_dlock.fencing.statements import FENCE_TABLE, ONCE_TABLE, Dialect

Values = dict[str, str | int]


class Guard(ABC):
    """The two tables, seen through one open connection."""

    dialect: Dialect

    @classmethod
    @abstractmethod
    def accepts(cls, connection: Any) -> bool:
        """Whether this is the guard for *connection*."""

    @abstractmethod
    def __init__(self, connection: Any) -> None: ...

    @abstractmethod
    def require_transaction(self) -> None:
        """Raise :exc:`~celery_dlock.ConfigurationError` if a statement would commit by itself."""

    @abstractmethod
    def execute(self, statement: str, values: Values) -> Any:
        """The cursor, of rows that are tuples, which has executed *statement*."""

    def raise_to(self, resource: str, token: int, owner: str) -> int | None:
        """Lift *resource* to *token*: ``None``, or the token that is too high for that.

        It passes where the stored token is smaller, or equal with the same owner: one holder
        writes many times, but after a loss of data two holders can have the same token.
        """
        stands = self._ask(self.dialect.raise_, token=token, resource=resource, owner=owner)
        return None if stands == token else stands or token

    def claim(self, effect_id: str) -> bool:
        """Note *effect_id* as done; ``False`` if it was noted before."""
        answer = self._ask(self.dialect.claim, effect_id=effect_id)
        if answer == 0:
            raise ConfigurationError("the driver does not hand on what LAST_INSERT_ID() was given")
        return bool(answer == 1)

    def mint(self, resource: str, owner: str) -> Any:
        """Count *resource* up for *owner*: its token."""
        return self._ask(self.dialect.mint, resource=resource, owner=owner)

    def create_tables(self) -> None:
        """Make both tables where they are missing."""
        for statement in self.dialect.schema:
            self.execute(statement, {}).close()

    def _ask(self, statement: str, token: int | None = None, **texts: str) -> Any:
        values: Values = {name: self.dialect.text(text) for name, text in texts.items()}
        if token is not None:
            values["token"] = token
        with _missing_table(self.dialect), closing(self.execute(statement, values)) as cursor:
            return self.dialect.answer(cursor)


@contextmanager
def _missing_table(dialect: Dialect) -> Iterator[None]:
    try:
        yield
    except Exception as exc:
        # The libraries around a driver keep its error as the cause.
        for error in (exc, exc.__cause__):
            if error is None or not dialect.is_missing_table(error):
                continue
            if FENCE_TABLE in str(error) or ONCE_TABLE in str(error):
                raise ConfigurationError(
                    f"{error}. Make the tables {FENCE_TABLE} and {ONCE_TABLE}: with Django add "
                    "'celery_dlock.fencing' to INSTALLED_APPS and migrate; with Alembic put "
                    "fencing.create_table(op.get_bind()) into a migration; else call "
                    "celery_dlock.fencing.create_table(connection) once, or execute: "
                    f"{'; '.join(dialect.schema)}"
                ) from exc
        raise


def is_a(connection: Any, *names: str) -> bool:
    """Whether a class of one of these dotted *names* is among those of *connection*'s type."""
    return any(
        f"{kind.__module__}.{kind.__qualname__}" in names for kind in type(connection).__mro__
    )


@cache
def pyformat(statement: str) -> str:
    """*statement* with ``%(resource)s`` in place of ``:resource``."""
    return re.sub(r":(\w+)", r"%(\1)s", statement)
