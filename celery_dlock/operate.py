"""What the commands say and do about locks, for code: who has a key, who waits, release, cancel,
hold.

A key is written as for :func:`celery_dlock.lock`. Each asks the store once or a few times, makes
none, and raises :exc:`~celery_dlock.BackendUnavailable` where it does not answer. What is said was
so at that moment. That is for people, alerts and tests: who is to work on something takes its lock.
"""

from __future__ import annotations

from typing import Any

from celery import current_app

from celery_dlock.ops import actions, holds, unique
from celery_dlock.ops.overview import Held, KeyDetails, OnHold, QueueEntry, as_stored, line
from celery_dlock.runtime import runtime

__all__ = [
    "Held",
    "OnHold",
    "QueueEntry",
    "cancel",
    "held",
    "hold",
    "on_hold",
    "release",
    "waiting",
]


def held(key: str, *, app: Any = None) -> tuple[Held, ...]:
    """Who has *key*: nobody, one, or with a limit or a read lock several."""
    app = app or current_app
    return line(app, as_stored(app, key)).holders


def waiting(key: str, *, app: Any = None, limit: int = 100) -> tuple[QueueEntry, ...]:
    """The first *limit* that come for *key*, those first whose turn it is."""
    app = app or current_app
    return KeyDetails.of(app, as_stored(app, key), limit).queue


def on_hold(key: str, *, app: Any = None) -> OnHold | None:
    """What a person has put *key* on."""
    app = app or current_app
    found = KeyDetails.of(app, as_stored(app, key))
    return found.line.on_hold(found.now)


def hold(
    key: str,
    seconds: float,
    *,
    because: str,
    by: str = "",
    instead_of: OnHold | None = None,
    app: Any = None,
) -> bool:
    """Keep *key* closed for so many *seconds*, up to a week, and say *because* of what, and *by*
    whom: this program's user and host unless told.

    Nobody new gets it; who has it goes on. ``False`` if it is on hold already, by another than
    *instead_of*, which is replaced. Raises :exc:`~celery_dlock.ConfigurationError` for a time or a
    text that cannot be meant.
    """
    app = app or current_app
    person, was = by or holds.this_person(), instead_of.name if instead_of else ""
    return holds.put_on_hold(app, as_stored(app, key), seconds, because, person, was)


def release(key: str, holder: Held | OnHold, *, app: Any = None) -> bool:
    """Take *key* from *holder*, as if its lease had expired; ``False`` if it has it no more. If
    *holder* is a hold, that ends.

    *holder* is one of those that :func:`held` has named: a key that has gone to another one since
    is left alone. A body that still runs goes on until it asks for its lease, and only its fenced
    writes are refused. A message that the store keeps runs again.
    """
    app = app or current_app
    key = as_stored(app, key)
    if isinstance(holder, OnHold):
        return holds.end_hold(app, key, holder.name)
    return actions.release(app, key, holder)


def cancel(task_id: str, *, app: Any = None) -> bool:
    """Have a task that waits in the store end as revoked, and a unique one's claim end; ``False``
    if there is neither.

    What runs goes on, and a message that is in the broker still comes.
    """
    app = app or current_app
    ended = [actions.cancel(app, message) for message in actions.find(app, [task_id])]
    for claim in unique.living(runtime(app).existing_store(), task_id=task_id):
        unique.end(app, claim)
        ended.append(True)
    return any(ended)
