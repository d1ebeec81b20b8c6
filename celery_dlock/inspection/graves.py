"""Dead messages as people read them: what each was, as far as its envelope tells.

Nothing is unpickled, whatever a message says that it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from celery_dlock.backends.base import Burial
from celery_dlock.core.state import Cause, task_id_of
from celery_dlock.inspection.overview import instant, time_of
from celery_dlock.tasks.entry import Entry, OfAnotherVersion, Undecodable
from celery_dlock.tasks.runtime import runtime


@dataclass(frozen=True, slots=True)
class Grave:
    """A dead message of ``size`` bytes; ``task`` is its whole identity.

    ``name`` of its task and ``arguments`` are ``None`` where the envelope does not tell. The
    arguments may be secret; a publisher can say with ``argsrepr`` how they are to be shown.
    """

    key: str
    task_id: str
    task: str
    name: str | None
    arguments: str | None
    cause: Cause
    since: datetime
    size: int

    @classmethod
    def of(cls, burial: Burial) -> Self:
        name = arguments = None
        try:
            entry = Entry.decode(burial.key, burial.message)
        except (Undecodable, OfAnotherVersion):
            pass
        else:
            name, arguments = _text(entry.headers.get("task")), _arguments(entry)
        dead = burial.dead
        return cls(
            burial.key,
            task_id_of(dead.task),
            dead.task,
            name,
            arguments,
            dead.cause,
            instant(dead.at),
            len(burial.message),
        )


@dataclass(frozen=True, slots=True)
class Graves:
    """The first that are dead, those first that are dead longest, and whether there are *more*.

    *now* is the store's, as are the instants.
    """

    found: tuple[Grave, ...]
    more: bool
    now: datetime

    @classmethod
    def of(cls, app: Any, limit: int) -> Self:
        """The first *limit*. Raises :exc:`~celery_dlock.BackendUnavailable`."""
        backend = runtime(app).existing_store()
        burials = backend.dead(limit + 1)
        more = len(burials) > limit
        return cls(tuple(map(Grave.of, burials[:limit])), more, time_of(backend))


def _arguments(entry: Entry) -> str | None:
    """As the publisher wants them shown; else as they are, if that can be read without danger."""
    args, kwargs = (_text(entry.headers.get(name)) for name in ("argsrepr", "kwargsrepr"))
    if args is not None or kwargs is not None:
        return f"{args or '()'} {kwargs or '{}'}"
    if entry.content_type != "application/json":
        return None
    try:
        body = json.loads(entry.body)
        return f"{body[0]!r} {body[1]!r}"
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
