"""Why did my task not run? And what has become of a key?

The lock store is believed first: what it says is so now. A final result comes next, then the last
event, then whatever else Celery has written down. Who does not answer is named in the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_dlock.core.canonical import canonical
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.inspection.facts import Facts, facts
from celery_dlock.inspection.in_store import has_lapsed, is_dead, runs, stands_in_line
from celery_dlock.inspection.overview import Held, InLine, Line, Near
from celery_dlock.inspection.past import besides, has_ended, has_happened, is_on_its_way
from celery_dlock.inspection.verdict import State, Verdict
from celery_dlock.inspection.wording import Clock, count, listed
from celery_dlock.monitoring.history_reader import Entry, HistoryReader

__all__ = ["Answer", "KeyAnswer", "State", "explain", "explain_key"]

#: By the certainty of what they know.
_WITNESSES = (
    runs,
    stands_in_line,
    is_dead,
    has_ended,
    has_lapsed,
    has_happened,
    is_on_its_way,
)

#: What the store says for certain.
_NOW = (State.RUNNING, State.WAITING, State.CALLED, State.DEAD)


@dataclass(frozen=True, slots=True)
class Answer:
    """What has become of one task, and why.

    Each of ``sentences`` goes on after "the task"; ``gaps`` say who could not be asked. ``keys``
    and ``tasks`` are those that the first sentences name; ``entries`` are its events in order. All
    texts may be of whoever sends messages.
    """

    task_id: str
    task_name: str | None
    state: State
    sentences: tuple[str, ...]
    gaps: tuple[str, ...]
    keys: tuple[str, ...]
    tasks: tuple[str, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """How a key stands, who waits for it in order, and what has happened to it, in order.

    ``line`` is ``None`` if the store did not answer, and ``away`` says why. ``queue`` are the first
    who wait. *now* is the store's, if it did.
    """

    key: str
    line: Line | None
    queue: tuple[InLine, ...]
    sentences: tuple[str, ...]
    entries: tuple[Entry, ...]
    now: datetime
    away: str = ""


def explain(app: Any, task_id: str, *, away: str = "") -> Answer:
    """What the store, the result backend and the history say of a task.

    It reads the names of all messages that wait, and up to ten thousand that are dead; where no
    event or result tells its keys, how up to a hundred thousand of them stand.

    Whoever of them does not answer is named in a sentence. The store is not asked if it is *away*,
    which says why. Raises :exc:`~celery_dlock.ConfigurationError` when the configuration is not
    usable.
    """
    known = facts(app, task_id, store_away=away)
    clock = Clock.of(app, known.standing.now if known.standing else None)
    found = _verdict(known, clock)
    gaps = known.away if found.state in _NOW else (*known.away, *known.unset)
    return Answer(
        task_id,
        known.task_name,
        found.state,
        tuple(dict.fromkeys((*found.reasons, *besides(known, found.state, clock)))),
        gaps,
        found.keys,
        found.tasks,
        known.entries,
    )


def explain_key(app: Any, key: str, limit: int = 20, events: int = 50) -> KeyAnswer:
    """How *key* stands, the first *limit* who wait for it, and its last *events*.

    Raises :exc:`~celery_dlock.ConfigurationError` for what cannot be a key.
    """
    key = canonical(key)
    clock = Clock.of(app)
    sentences: list[str] = []
    stands: Line | None = None
    waiting: tuple[InLine, ...] = ()
    away = ""
    try:
        near = Near.of(app, key, limit)
        stands, clock = near.line, Clock.of(app, near.now)
        if stands.called or stands.waiting:
            waiting = near.queue
        sentences += _of_line(stands, waiting, clock)
    except BackendUnavailable as exc:
        away = str(exc)
        sentences.append(f"the lock store did not answer: {away}")
    entries, gap = _events(app, key, events)
    return KeyAnswer(key, stands, waiting, (*sentences, *gap), entries, clock.now, away)


def _verdict(known: Facts, clock: Clock) -> Verdict:
    for witness in _WITNESSES:
        found = witness(known, clock)
        if found is not None:
            return found
    where = "in the broker for a worker that consumes its queue"
    if known.standing is None:
        why = f"is not known: it may run, it may wait for its key or {where}, or there was none"
    else:
        why = f"is not known: it may wait {where}, it may have ended long ago, or there was none"
    return Verdict(State.UNKNOWN, (why,))


def _of_line(stands: Line, waiting: tuple[InLine, ...], clock: Clock) -> list[str]:
    if stands.unreadable:
        return [f"the lock store answers, and cannot read this key: {stands.unreadable}"]
    found = [_of_holder(held, clock) for held in stands.holders] or ["nobody holds it"]
    if stands.called:
        found.append(f"the turn of {listed(stands.called)} has come, and no worker has taken it")
    if stands.waiting:
        since = f", the first since {clock.tell(stands.oldest)}" if stands.oldest else ""
        found.append(f"{count(stands.waiting, 'message waits', 'messages wait')}{since}")
    places = [entry.task_id for entry in waiting if not entry.parked]
    if places:
        found.append(f"a place is kept for {listed(places)}, to come back by itself")
    return found


def _of_holder(held: Held, clock: Clock) -> str:
    token = f" with token {held.token}" if held.token else ""
    since, expires = clock.tell(held.since), clock.tell(held.expires)
    if held.expires > clock.now:
        return f"{held.task_id} has held it since {since}{token}; its lease lasts until {expires}"
    return f"{held.task_id} held it from {since} on{token}, until its lease ended at {expires}"


def _events(app: Any, key: str, limit: int) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    try:
        reader = HistoryReader.from_app(app)
    except ConfigurationError as exc:
        return (), (str(exc),)
    try:
        return tuple(reversed(reader.of_key(key, limit))), ()
    except BackendUnavailable as exc:
        return (), (str(exc),)
    finally:
        reader.close()
