"""What a kind of database must do to fence a write; one subclass a file.

Everything runs in the transaction that the caller has opened and will commit, because a check
that is not part of the write proves nothing about it. The driver's errors pass through as they
are: the caller's transaction handling knows them. Only a missing table is told apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

FENCE_TABLE = "dlock_fence"
ONCE_TABLE = "dlock_once"


class Guard(ABC):
    """The two tables, seen through one open connection."""

    #: The statements that make the tables; each may be repeated.
    schema: ClassVar[tuple[str, ...]]

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
    def raise_to(self, resource: str, token: int, owner: str) -> bool:
        """Lift *resource* to *token*, in one statement; ``False`` if it stands too high already.

        It passes where the stored token is smaller, or equal with the same owner: one holder
        writes many times, but after a loss of data two holders can have the same token.
        """

    @abstractmethod
    def seen(self, resource: str) -> int | None:
        """The token that *resource* stands at."""

    @abstractmethod
    def claim(self, effect_id: str) -> bool:
        """Note *effect_id* as done; ``False`` if it was noted before."""

    @abstractmethod
    def create_tables(self) -> None:
        """Make both tables where they are missing."""
