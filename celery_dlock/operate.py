"""The commands for locks as functions: held, waiting, release, cancel, hold, discard.

A key is written as for :func:`celery_dlock.lock`. Each function makes one or a few requests to the
store, never creates one, and raises :exc:`~celery_dlock.BackendUnavailable` if it does not answer.
An answer was true when it was given. Use it for people, alerts and tests. Code that works on a
resource takes its lock instead.
"""

from __future__ import annotations

from typing import Any

from celery import current_app

from celery_dlock.ops import actions, holds, unique
from celery_dlock.ops.overview import Held, KeyDetails, OnHold, QueueEntry, as_stored
from celery_dlock.runtime import runtime

__all__ = [
    "Held",
    "OnHold",
    "QueueEntry",
    "cancel",
    "discard",
    "held",
    "hold",
    "on_hold",
    "release",
    "waiting",
]


def held(key: str, *, app: Any = None) -> tuple[Held, ...]:
    """The holders of *key*: none, one, or with a limit or a read lock several."""
    app = app or current_app
    found = KeyDetails.of(app, as_stored(app, key))
    return tuple(holder for holder in found.line.holders if holder.expires > found.now)


def waiting(key: str, *, app: Any = None, limit: int = 100) -> tuple[QueueEntry, ...]:
    """The first *limit* tasks that wait for *key*, in the order of their turns."""
    app = app or current_app
    return KeyDetails.of(app, as_stored(app, key), limit).queue


def on_hold(key: str, *, app: Any = None) -> OnHold | None:
    """The hold by which a person keeps *key* closed, if there is one."""
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
    """Keep *key* closed for *seconds*, up to a week, *because* of a reason.

    *by* names the person, by default the user and host of this program. No new task gets the key;
    a holder goes on. ``False`` if the key is already on hold, unless by *instead_of*, which is
    replaced. Raises :exc:`~celery_dlock.ConfigurationError` for a wrong time or text.
    """
    app = app or current_app
    person, was = by or holds.this_person(), instead_of.name if instead_of else ""
    return holds.put_on_hold(app, as_stored(app, key), seconds, because, person, was)


def release(key: str, holder: Held | OnHold, *, app: Any = None) -> bool:
    """Take *key* from *holder*, as if its lease had expired; ``False`` if it no longer has it.
    If *holder* is a hold, that ends.

    *holder* is one that :func:`held` has returned: if the key has another holder by now, nothing
    happens. A running body goes on until it checks its lease, and only its fenced writes are
    refused. If the store keeps its message, the task runs again.
    """
    app = app or current_app
    key = as_stored(app, key)
    if isinstance(holder, OnHold):
        return holds.end_hold(app, key, holder.name)
    return actions.release(app, key, holder)


def cancel(task_id: str, *, app: Any = None) -> bool:
    """Cancel a task that waits in the store, and end its unique claim; ``False`` if it has neither.

    The task ends as revoked. A key that is only reserved for it, as for a retry, is released at
    once, and the task ends when its message comes. A running body goes on, and another message in
    the broker is not reached.
    """
    app = app or current_app
    ended = [actions.cancel(app, message) for message in actions.find(app, [task_id])]
    for claim in unique.living(runtime(app).existing_store(), task_id=task_id):
        unique.end(app, claim)
        ended.append(True)
    return any(ended)


def discard(task_id: str, *, by: str = "", app: Any = None) -> bool:
    """Discard the dead letter of a task: it does not run. ``False`` if it has none.

    *by* names the person, by default the user and host of this program. Its result stays as it is;
    its unique claim ends.
    """
    app = app or current_app
    letters = actions.dead_under(app, task_id)
    return any([*actions.discard(app, letters, by or holds.this_person())])
