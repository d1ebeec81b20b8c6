"""What is locked, by whom, since when, and who waits: what the store says at one moment.

Instants are those of the store's clock, and so is *now*, by which ages are reckoned: that of the
host where somebody looks may be wrong. What is shown may have changed since: whoever acts on it
names what was shown, see :mod:`celery_dlock.inspection.hands`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from celery_dlock.backends.base import LockBackend
from celery_dlock.core.canonical import canonical
from celery_dlock.core.edits import backlog
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import WINDOW, Grant, Holder, KeyState, Mode, Waiting, task_id_of
from celery_dlock.errors import BackendUnavailable
from celery_dlock.inspection.looking import look
from celery_dlock.tasks.runtime import runtime

#: Names that are asked for at a time where all of them are looked through.
BATCH = 1000

#: A page that shows few of the names, because few match, looks through so many of them at most.
LOOKED_THROUGH = 20_000

_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Held:
    """One holder. ``token`` is what the store issued (0 of a reader), ``owner`` names the claim."""

    task_id: str
    owner: str
    token: int
    mode: Mode
    limit: int
    since: datetime
    expires: datetime

    @classmethod
    def of(cls, holder: Holder) -> Self:
        return cls(
            task_id_of(holder.task),
            holder.owner,
            holder.token,
            holder.mode,
            holder.limit,
            instant(holder.since),
            instant(holder.expires),
        )


@dataclass(frozen=True, slots=True)
class Line:
    """One key: who holds it, how many messages wait, and since when the one that waits longest.

    ``called`` are the ids of tasks whose turn has come and that have not taken it yet. Of a key
    that cannot be read there is nothing but ``unreadable``, which says why.
    """

    key: str
    holders: tuple[Held, ...]
    called: tuple[str, ...]
    waiting: int
    oldest: datetime | None
    unreadable: str = ""

    @classmethod
    def of(cls, key: str, state: KeyState) -> Self:
        running = {holder.task for holder in state.holders}
        arrived = [w.arrived for w in state.waiting if w.parked and w.task not in running]
        return cls(
            key,
            tuple(map(Held.of, state.holders)),
            tuple(task_id_of(grant.task) for grant in state.grants),
            backlog(state),
            instant(min(arrived)) if arrived else None,
        )

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to show of it."""
        return not (self.holders or self.called or self.waiting or self.unreadable)


@dataclass(frozen=True, slots=True)
class Page:
    """Some keys, in no order, and what to ask for the next page with; ``None`` after the last."""

    lines: tuple[Line, ...]
    cursor: str | None
    now: datetime


@dataclass(frozen=True, slots=True)
class Selection:
    """The first of some keys, and of all of them how many there are and how many messages wait."""

    lines: tuple[Line, ...]
    total: int
    messages: int
    now: datetime


@dataclass(frozen=True, slots=True)
class InLine:
    """One that waits for a key. A place lapses, and a message gives up, unless that is ``None``.

    It is *called* when its turn has come, or when it is to end for the reason ``ending``.
    """

    task_id: str
    task: str
    mode: Mode
    parked: bool
    called: bool
    arrived: datetime | None
    until: datetime | None
    ending: str | None


@dataclass(frozen=True, slots=True)
class Near:
    """One key as it is: its line, who comes next, and how many wait *behind* those."""

    line: Line
    queue: tuple[InLine, ...]
    behind: int
    now: datetime

    @classmethod
    def of(cls, app: Any, key: str, limit: int = WINDOW) -> Self:
        """With the first *limit* that come.

        Up to ``WINDOW`` it costs the same with ten waiting or a million, beyond it all are read.
        Raises :exc:`~celery_dlock.BackendUnavailable` when the store does not answer.
        """
        backend = runtime(app).existing_store()
        (state,) = look(backend, [key])
        now = time_of(backend)
        if isinstance(state, BackendUnavailable):
            return cls(_line(key, state), (), 0, now)
        if limit > WINDOW <= len(state.waiting):
            state = backend.peek(key)
        queue = _queue(state)
        hidden = state.parked - sum(waiting.parked for waiting in state.waiting)
        return cls(Line.of(key, state), queue[:limit], hidden + len(queue[limit:]), now)


def instant(microseconds: int) -> datetime:
    """A store's instant as a date, in UTC."""
    return datetime.fromtimestamp(microseconds / SECOND, UTC)


def time_of(backend: LockBackend) -> datetime:
    """What time it is by the store, or where that cannot be asked by this host."""
    try:
        return instant(backend.now())
    except BackendUnavailable:
        return datetime.now(UTC)


def page(
    app: Any, cursor: str = "", limit: int = 100, *, match: str = "", waiting: bool = False
) -> Page:
    """About *limit* keys with *match* in their name; with *waiting* only those with a queue.

    Raises :exc:`~celery_dlock.BackendUnavailable`, and :exc:`ValueError` for a wrong *cursor*.
    """
    backend = runtime(app).existing_store()
    lines: list[Line] = []
    following: str | None = cursor
    looked = 0
    while following is not None and len(lines) < limit and looked < LOOKED_THROUGH:
        names = backend.keys(following, BATCH if match else limit, waiting=waiting)
        following = names.cursor
        looked += len(names.keys) + 1
        lines += lines_of(backend, [key for key in dict.fromkeys(names.keys) if match in key])
    return Page(tuple(lines), following, time_of(backend))


def foremost(
    app: Any, limit: int | None = 100, *, match: str = "", waiting: bool = False
) -> Selection:
    """The *limit* keys with *match* in their name that a person wants to see first, of all keys.

    Those first that cannot be read, then those where a message waits longest, and then those that
    are held longest. With *waiting* only keys with a queue.

    Raises :exc:`~celery_dlock.BackendUnavailable`.
    """
    backend = runtime(app).existing_store()
    total = messages = 0

    def counted() -> Iterator[Line]:
        nonlocal total, messages
        for line in lines_in_use(backend, waiting=waiting, match=match):
            total += 1
            messages += line.waiting
            yield line

    if limit is None:
        lines = sorted(counted(), key=_urgency)
    else:
        lines = heapq.nsmallest(limit, counted(), key=_urgency)
    return Selection(tuple(lines), total, messages, time_of(backend))


def _urgency(line: Line) -> tuple[bool, datetime, datetime, str]:
    since = min((held.since for held in line.holders), default=_NEVER)
    return not line.unreadable, line.oldest or _NEVER, since, line.key


def lines_in_use(backend: LockBackend, *, waiting: bool = False, match: str = "") -> Iterator[Line]:
    """Every key in use with *match* in its name, or of those every key with a queue, each once."""
    for names in names_in_use(backend, waiting=waiting):
        yield from lines_of(backend, [name for name in names if match in name])


def names_in_use(backend: LockBackend, *, waiting: bool = False) -> Iterator[list[str]]:
    """The name of every key in use, or of those with a queue, some at a time, each once."""
    cursor: str | None = ""
    seen = set[str]()
    while cursor is not None:
        page = backend.keys(cursor, BATCH, waiting=waiting)
        cursor = page.cursor
        yield [name for name in dict.fromkeys(page.keys) if name not in seen]
        seen.update(page.keys)


def lines_of(backend: LockBackend, keys: list[str]) -> list[Line]:
    """Those of *keys* that are in use still, or cannot be read."""
    lines = (_line(key, state) for key, state in zip(keys, look(backend, keys), strict=True))
    return [line for line in lines if not line.is_idle]


def _line(key: str, state: KeyState | BackendUnavailable) -> Line:
    if isinstance(state, BackendUnavailable):
        return Line(key, (), (), 0, None, unreadable=str(state))
    return Line.of(key, state)


def line(app: Any, key: str) -> Line:
    """One key as it is, also if it is idle."""
    return Near.of(app, key).line


def as_stored(app: Any, key: str) -> str:
    """The key that a person means by *key*: that one if it is in use, else its canonical text.

    Raises :exc:`~celery_dlock.ConfigurationError` for what cannot be a key.
    """
    return canonical(key) if line(app, key).is_idle else key


def _queue(state: KeyState) -> tuple[InLine, ...]:
    """Who is called, and then who waits, in their order.

    The copy that the store keeps of a running task's message is not among them. A place that has
    lapsed may be, until somebody comes to the key: looking calls nobody.
    """
    running = {holder.task for holder in state.holders}
    waiting = (w for w in state.waiting if not (w.parked and w.task in running))
    return (*map(_called, state.grants), *map(_waits, waiting))


def _called(grant: Grant) -> InLine:
    until = None if grant.parked else instant(grant.due)
    ending = grant.ending and grant.ending.value
    return InLine(
        task_id_of(grant.task), grant.task, grant.mode, grant.parked, True, None, until, ending
    )


def _waits(entry: Waiting) -> InLine:
    until = entry.gives_up if entry.parked else entry.lapses
    return InLine(
        task_id_of(entry.task),
        entry.task,
        entry.mode,
        entry.parked,
        False,
        instant(entry.arrived),
        None if until is None else instant(until),
        None,
    )
