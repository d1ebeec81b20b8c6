"""The header of a task that is unique or debounced: the claim that is its own, or whose duplicate
it is, or at which key a newer message of it may wait.

The claim that is named there is the one that is ended, whatever the task says in the version of the
worker that runs it. The header names the task that it is about: a body may pass its own headers on
to whatever it publishes.
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
    """The ``name`` of the claim, and how long it lasts: ``until`` when, in seconds the ``ttl``.

    ``stored`` is what the store had there as the task was published.
    """

    name: str
    until: Until
    ttl: float
    stored: bytes | None = None

    @classmethod
    def of(cls, unique: Uniqueness, name: str, stored: bytes | None = None) -> Self:
        return cls(name, unique.options.until, unique.options.ttl, stored)

    @classmethod
    def read(cls, headers: Mapping[str, Any]) -> Self | None:
        """The terms of the task with *headers*; ``None`` for a task without, and for nonsense."""
        match _header_of(headers):
            case {
                "name": str(name),
                "until": "done" | "start" as until,
                "ttl": int(ttl) | float(ttl),
                "stored": str(stored),
            } if name and is_text(name) and is_text(stored) and 0 < ttl <= LONGEST_DURATION:
                return cls(name, until, float(ttl), stored.encode() or None)
            case _:
                return None

    def header(self, task_id: str, task: str) -> dict[str, Any]:
        """The header of the *task* with that id."""
        stored = (self.stored or b"").decode()
        terms = {"name": self.name, "until": self.until, "ttl": self.ttl, "stored": stored}
        return _about(task_id, task, **terms)


def duplicate(task_id: str, task: str, of: str) -> dict[str, Any]:
    """The header of a message that is published although another one lives."""
    return _about(task_id, task, duplicate_of=of)


def duplicate_of(headers: Mapping[str, Any]) -> str | None:
    """Whose duplicate the message with *headers* was as it was published."""
    return _text(headers, "duplicate_of")


def debounced(task_id: str, task: str, key: str) -> dict[str, Any]:
    """The header of a debounced call that goes by the broker, for the store did not answer. It may
    wait at that *key* nevertheless.
    """
    return _about(task_id, task, debounced_at=key)


def debounced_at(headers: Mapping[str, Any]) -> str | None:
    """Where a newer call may have taken the place of the message with *headers*."""
    return _text(headers, "debounced_at")


def is_about(task_id: str | None, task: str, headers: Mapping[str, Any] | None) -> bool:
    """Whether *headers* of a call of *task* under that id have the header, and it is about it."""
    return bool(headers) and bool(_header_of({**(headers or {}), "id": task_id, "task": task}))


def _about(task_id: str, task: str, **facts: Any) -> dict[str, Any]:
    return {UNIQUE: {"id": task_id, "task": task, **facts}}


def _text(headers: Mapping[str, Any], name: str) -> str | None:
    if headers.get(UNIQUE) is None:  # as of most messages
        return None
    return text_or_none(_header_of(headers).get(name)) or None


def _header_of(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The header of the task with *headers*; empty if it is about another one."""
    header, task_id = headers.get(UNIQUE), headers.get("id")
    if not isinstance(header, dict) or task_id is None:
        return {}
    is_own = header.get("id") == task_id and header.get("task") == headers.get("task")
    return header if is_own else {}
