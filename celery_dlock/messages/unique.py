"""What the message of a unique task carries: where its claim stands, whose duplicate it is, or at
which key a newer one of its task may wait.

The claim that is named here is the one that is ended, whatever the task says in the version of the
worker that runs it. What is said names the task that it is said of: a body may pass its own headers
on to whatever it publishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from celery_dlock.core.checks import LONGEST_DURATION
from celery_dlock.core.unique import Until
from celery_dlock.locks.unique import Uniqueness
from celery_dlock.messages.headers import text_or_none
from celery_dlock.stores.unreadable import is_text

#: The header.
UNIQUE = "dlock_unique"


@dataclass(frozen=True, slots=True)
class UniqueTerms:
    """Under which ``name`` the claim stands, and how long it lasts: ``until`` when, in seconds the
    ``ttl``. ``stands`` is what was put there as the task was published. Where the newest call wins
    (``newest_wins``) no worker asks who lives: it only ends the claim of what it starts.
    """

    name: str
    until: Until
    ttl: float
    stands: bytes | None = None
    newest_wins: bool = False

    @classmethod
    def of(cls, unique: Uniqueness, name: str, stands: bytes | None = None) -> Self:
        asks = unique.options
        return cls(name, asks.until, asks.ttl, stands, asks.newest_wins)

    @classmethod
    def read(cls, headers: Mapping[str, Any]) -> Self | None:
        """What a message with *headers* carries; ``None`` if that is nothing, or nonsense."""
        match _told(headers):
            case {
                "name": str(name),
                "until": "done" | "start" as until,
                "ttl": int(ttl) | float(ttl),
                "stands": str(stands),
            } if name and is_text(name) and is_text(stands) and 0 < ttl <= LONGEST_DURATION:
                newest_wins = _told(headers).get("newest_wins") is True
                return cls(name, until, float(ttl), stands.encode() or None, newest_wins)
            case _:
                return None

    def header(self, task_id: str, task: str) -> dict[str, Any]:
        """What goes into the message of the *task* with that id."""
        stands = (self.stands or b"").decode()
        told = {"name": self.name, "until": self.until, "ttl": self.ttl, "stands": stands}
        mode = {"newest_wins": True} if self.newest_wins else {}
        return {UNIQUE: {"id": task_id, "task": task, **told, **mode}}


def duplicate(task_id: str, task: str, of: str) -> dict[str, Any]:
    """The header of a message that is published although another one lives."""
    return {UNIQUE: {"id": task_id, "task": task, "duplicate_of": of}}


def duplicate_of(headers: Mapping[str, Any]) -> str | None:
    """Whose duplicate the message with *headers* was as it was published."""
    return _text(headers, "duplicate_of")


def debounced(task_id: str, task: str, key: str) -> dict[str, Any]:
    """The header of a debounced call that goes by the broker, for the store did not answer. It may
    wait at that *key* nevertheless.
    """
    return {UNIQUE: {"id": task_id, "task": task, "debounced_at": key}}


def debounced_at(headers: Mapping[str, Any]) -> str | None:
    """Where a newer call may have taken the place of the message with *headers*."""
    return _text(headers, "debounced_at")


def is_told(headers: Mapping[str, Any] | None, task_id: str | None, task: str) -> bool:
    """Whether a message that is published with *headers* says something of this task."""
    return bool(headers) and bool(_told({**(headers or {}), "id": task_id, "task": task}))


def _text(headers: Mapping[str, Any], name: str) -> str | None:
    if headers.get(UNIQUE) is None:  # as of most messages
        return None
    return text_or_none(_told(headers).get(name)) or None


def _told(headers: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the task that *headers* are of."""
    told = headers.get(UNIQUE)
    if not isinstance(told, dict):
        return {}
    of_it = told.get("id") == headers.get("id") and told.get("task") == headers.get("task")
    return told if of_it and headers.get("id") is not None else {}
