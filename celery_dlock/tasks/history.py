"""What a message carries of its own past, in the header ``dlock``; and who it is.

Celery's ``retry()`` copies headers and keeps the task id, so the header names the identity it
speaks of; under another identity the past does not count.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery.app.task import Context

#: Written by the library into a message that it publishes again.
HISTORY = "dlock"
#: Written by the worker's main process into the request, new for each delivery.
DELIVERY = "dlock_delivery"


def identity(request: Context) -> str:
    """``task_id:retries:nesting``: ``retry()`` and ``replace()`` keep the task id."""
    return f"{request.id}:{request.retries or 0}:{request.replaced_task_nesting or 0}"


def identity_in(headers: Mapping[str, Any]) -> str:
    """The same from the headers of a message."""
    nesting = headers.get("replaced_task_nesting") or 0
    return f"{headers['id']}:{headers.get('retries') or 0}:{nesting}"


def delivery_of(request: Context) -> Mapping[str, Any]:
    """What the main process noted of this delivery, taken off the headers that travel on.

    Where no main process did (eager mode), only a nonce.
    """
    delivery = vars(request).pop(DELIVERY, None)
    if request.headers:
        request.headers.pop(DELIVERY, None)
    return delivery if isinstance(delivery, dict) else {"nonce": uuid.uuid4().hex}


@dataclass(frozen=True, slots=True)
class History:
    """How often a task was refused (``waits``) and since when (``since``, seconds since 1970);
    how often the store was ``away``; how many of its runs ``lost`` their lock. ``key`` is the one
    in whose queue it waited, if it was called from there, and ``called`` since when. ``carried`` is
    what sinks have said to their later selves.
    """

    task: str
    waits: int = 0
    since: float | None = None
    away: int = 0
    lost: int = 0
    key: str | None = None
    called: float | None = None
    carried: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, request: Context, task: str) -> History:
        """The past that *request* carries; a fresh one where it carries none, or nonsense."""
        header = request.get(HISTORY)
        if not isinstance(header, dict) or header.get("task") != task:
            return cls(task)
        return cls(
            task,
            waits=_count(header.get("waits")),
            since=_instant(header.get("since")),
            away=_count(header.get("away")),
            lost=_count(header.get("lost")),
            key=header.get("key") if isinstance(header.get("key"), str) else None,
            called=_instant(header.get("called")),
            carried=_texts(header.get("carried")),
        )

    def header(self) -> dict[str, Any]:
        """What goes into the message."""
        return {
            "task": self.task,
            "waits": self.waits,
            "since": self.since,
            "away": self.away,
            "lost": self.lost,
            **({"carried": dict(self.carried)} if self.carried else {}),
        }


def carried_by(headers: Mapping[str, Any]) -> dict[str, str]:
    """What the message with *headers* carries for sinks."""
    header = headers.get(HISTORY)
    return _texts(header.get("carried")) if isinstance(header, dict) else {}


def _instant(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {name: text for name, text in value.items() if isinstance(text, str)}


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
