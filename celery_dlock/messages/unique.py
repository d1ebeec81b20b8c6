"""What the message of a unique task carries: where its claim stands, or whose duplicate it is.

The claim that is named here is the one that is ended, whatever the task says in the version of the
worker that runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from celery_dlock.core.unique import Until
from celery_dlock.locks.unique import Uniqueness

#: The header.
UNIQUE = "dlock_unique"


@dataclass(frozen=True, slots=True)
class UniqueTerms:
    """Under which ``name`` the claim stands, and how long it lasts: ``until`` when, in seconds the
    ``ttl``. ``stands`` is what was put there as the task was published.
    """

    name: str
    until: Until
    ttl: float
    stands: bytes | None = None

    @classmethod
    def of(cls, unique: Uniqueness, name: str, stands: bytes | None = None) -> Self:
        return cls(name, unique.options.until, unique.options.ttl, stands)

    @classmethod
    def read(cls, headers: Mapping[str, Any]) -> Self | None:
        """What a message with *headers* carries; ``None`` if that is nothing, or nonsense."""
        match headers.get(UNIQUE):
            case {
                "name": str(name),
                "until": "done" | "start" as until,
                "ttl": int(ttl) | float(ttl),
                "stands": str(stands),
            } if name and ttl > 0:
                return cls(name, until, float(ttl), stands.encode() or None)
            case _:
                return None

    def header(self) -> dict[str, Any]:
        """What goes into the message."""
        stands = (self.stands or b"").decode()
        return {UNIQUE: {"name": self.name, "until": self.until, "ttl": self.ttl, "stands": stands}}


def duplicate(of: str) -> dict[str, Any]:
    """The header of a message that is published although another one lives."""
    return {UNIQUE: {"duplicate_of": of}}


def duplicate_of(headers: Mapping[str, Any]) -> str | None:
    """Whose duplicate the message with *headers* was as it was published."""
    match headers.get(UNIQUE):
        case {"duplicate_of": str(other)} if other:
            return other
        case _:
            return None
