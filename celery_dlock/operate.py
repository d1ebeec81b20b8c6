"""The commands for locks as functions: who has a key and who waits, and what an operator may do.

A key is written as for :func:`celery_dlock.lock`. Each function makes a few requests to the store,
never creates one, and raises :exc:`~celery_dlock.BackendUnavailable` if it does not answer. An
answer was true when it was given. Use it for people, alerts and tests. Code that works on a
resource takes its lock instead.

What acts returns whether there was something to do: what it names exactly may have gone meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery import current_app

from celery_dlock.ops import actions, dead_letters, holds
from celery_dlock.ops.action import Action, NotSoAnyMore, this_person
from celery_dlock.ops.overview import Held, KeyDetails, OnHold, QueueEntry, as_stored

__all__ = [
    "Held",
    "OnHold",
    "QueueEntry",
    "cancel",
    "discard",
    "end_cooldown",
    "end_hold",
    "held",
    "hold",
    "on_hold",
    "release",
    "replay",
    "step_down",
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
    app, was = app or current_app, instead_of.name if instead_of else ""
    person, name = by or this_person(), as_stored(app, key)
    return _done(lambda: [holds.hold(app, name, was, lasts=seconds, because=because, by=person)])


def end_hold(key: str, hold: OnHold, *, app: Any = None) -> bool:
    """End the *hold* of *key* that :func:`on_hold` has returned; ``False`` if it is another one."""
    app = app or current_app
    return _done(lambda: [holds.end_hold(app, as_stored(app, key), hold.name)])


def release(key: str, holder: Held, *, app: Any = None) -> bool:
    """Take *key* from *holder*, as if its lease had expired; ``False`` if it no longer has it.

    *holder* is one that :func:`held` has returned: if the key has another holder by now, nothing
    happens. A running body goes on until it checks its lease, and only its fenced writes are
    refused. If the store keeps its message, the task runs again. Raises
    :exc:`~celery_dlock.ConfigurationError` for the key of a beat: see :func:`step_down`.
    """
    app = app or current_app
    return _done(lambda: [actions.release(app, as_stored(app, key), holder.owner)])


def end_cooldown(key: str, *, app: Any = None) -> bool:
    """Open the slots of *key* that are cooling down; ``False`` if there are none."""
    app = app or current_app
    return _done(lambda: [actions.end_cooldown(app, as_stored(app, key))])


def cancel(task_id: str, *, app: Any = None) -> bool:
    """Cancel a task that waits in the store, and end its unique claim; ``False`` if it has neither.

    The task ends as revoked. A key that is only reserved for it, as for a retry, is released at
    once, and the task ends when its message comes. A running body goes on, and another message in
    the broker is not reached.
    """
    return _done(lambda: actions.cancels(app or current_app, task_id))


def replay(task_id: str, *, app: Any = None) -> bool:
    """Have the dead letter of a task wait for its key again; ``False`` if it has none.

    Its lost runs are forgotten. One that has expired stays: ``False``.
    """
    app = app or current_app
    return _done(lambda: dead_letters.replays(app, dead_letters.letters(app, task_id)))


def discard(task_id: str, *, by: str = "", app: Any = None) -> bool:
    """Discard the dead letter of a task: it does not run. ``False`` if it has none.

    *by* names the person, by default the user and host of this program. Its result stays as it is;
    its unique claim ends.
    """
    app = app or current_app
    return _done(lambda: dead_letters.discards(app, dead_letters.letters(app, task_id)), by)


def step_down(*, app: Any = None) -> bool:
    """Ask the beat that leads to hand the lead to another one; ``False`` if none could take it."""
    return _done(lambda: [actions.step_down(app or current_app)])


def _done(found: Callable[[], Sequence[Action]], by: str = "") -> bool:
    """Carry out what is *found*; whether any of it was still to be done."""
    try:
        done = [action.carry_out(by or this_person()) for action in found()]
    except NotSoAnyMore:
        return False
    return any(done)
