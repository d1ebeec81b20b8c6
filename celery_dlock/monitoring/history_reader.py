"""What the history says of a key, of a task, of the last minutes.

For processes that need not work with locks: a command, a page. Nothing is in it that happened
while no ``dlock_history`` was set, and a process that is killed takes its last half second along.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from celery_dlock.core.events import EVENTS, Event, Subject
from celery_dlock.errors import ConfigurationError
from celery_dlock.registry import load
from celery_dlock.runtime import naming, settings_of

if TYPE_CHECKING:
    from celery_dlock.monitoring.history import Queries, Row

_QUERIES = "celery_dlock.monitoring.history:Queries"
_1970 = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One event of one key, or of none; ``details`` is what the kind of event has besides.

    The texts are what somebody sent: anything may be in them.
    """

    at: datetime
    event: str
    key: str | None
    task_id: str
    task_name: str
    label: str
    token: int | None
    details: dict[str, Any]

    def told(self) -> Event | None:
        """The event, of this key alone; ``None`` if another version has stored it otherwise."""
        if self.event not in EVENTS:
            return None
        kind, key, token = EVENTS[self.event], self.key, self.token
        values: dict[str, Any] = {**self.details, "key": key, "resource": key, "mine": token}
        values |= {"keys": (key,), "tokens": (token or 0,)}
        values["subject"] = Subject(self.task_id, self.task_name, self.label)
        known = values.keys() & {field.name for field in fields(kind)}
        try:
            return kind(**{name: values[name] for name in known})
        except TypeError:  # a field is missing
            return None


@dataclass(frozen=True, slots=True)
class TaskTally:
    """How often things happened to the tasks of one name.

    ``refused`` counts tasks that found their lock held, each once, and ``at_once`` the locks that
    were had without that. ``took``, ``held`` and ``ttl`` are seconds:
    what 99 % of its latest acquisitions and holds did not exceed, and the shortest lease among
    them; ``None`` without any.
    """

    task_name: str
    acquired: int
    at_once: int
    refused: int
    timed_out: int
    skipped: int
    dropped: int
    lost: int
    stale: int
    dead_lettered: int
    took: float | None
    held: float | None
    ttl: float | None


@dataclass(frozen=True, slots=True)
class TaskTallies:
    """The tasks by name, counted from *since* on, which is later than asked if there was much."""

    since: datetime
    tasks: tuple[TaskTally, ...]


class HistoryReader:
    """Reads what ``dlock_history`` has kept, the newest first.

    Everything raises :exc:`~celery_dlock.BackendUnavailable` when the database does not answer.
    """

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    @classmethod
    def from_app(cls, app: Any) -> Self:
        """The reader of the history of *app*; it does not connect.

        Raises :exc:`~celery_dlock.ConfigurationError` when ``dlock_history`` is not set, or
        SQLAlchemy or the driver is not installed.
        """
        options = settings_of(app).history
        with naming(app):
            if options is None:
                raise ConfigurationError(
                    "dlock_history is not set: to keep events set it, on a single machine to "
                    "sqlite:///locks-history.db"
                )
            return cls(load(_QUERIES, "history", "dlock_history").of(options))

    def of_key(
        self, key: str, limit: int = 100, before: datetime | None = None
    ) -> tuple[HistoryEntry, ...]:
        """The events of *key*, the latest *limit* of them, of those *before* an instant."""
        return _entries(self._queries.of_key(key, limit, _microseconds(before)))

    def of_task(self, task_id: str, limit: int = 100) -> tuple[HistoryEntry, ...]:
        """The latest events of a task; one that concerns several keys comes once for each."""
        return _entries(self._queries.of_task(task_id, limit))

    def recent(self, limit: int = 100, since: datetime | None = None) -> tuple[HistoryEntry, ...]:
        """The latest events of all; with *since* only those that came after it."""
        return _entries(self._queries.recent(limit, _microseconds(since)))

    def by_task(self, since: datetime) -> TaskTallies:
        """What happened to the tasks from *since* on, by their names.

        Bounded: where more was written than can be counted at once, the latest are counted.
        """
        first, counts, samples = self._queries.by_task(_microseconds(since) or 0)
        started = since if first is None else _instant(first)
        return TaskTallies(started, tuple(_tallies(counts, samples)))

    def close(self) -> None:
        """Give back connections."""
        self._queries.close()


def _tallies(
    counts: Iterable[tuple[str, str, int]], samples: Iterable[tuple[str, str, str]]
) -> Iterable[TaskTally]:
    happened: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task_name, event, number in counts:
        happened[task_name][event] += number
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for task_name, _, text in samples:
        for name, value in json.loads(text).items():
            if name in ("took", "held", "ttl"):
                seconds[task_name, name].append(value)
    for name, count in sorted(happened.items()):
        yield TaskTally(
            task_name=name,
            acquired=count["Acquired"] + count["AtOnce"],
            at_once=count["AtOnce"],
            refused=count["Refused"],
            timed_out=count["TimedOut"],
            skipped=count["Skipped"],
            dropped=count["Dropped"],
            lost=count["Lost"],
            stale=count["StaleRejected"],
            dead_lettered=count["DeadLettered"],
            took=p99(seconds[name, "took"]),
            held=p99(seconds[name, "held"]),
            ttl=min(seconds[name, "ttl"], default=None),
        )


def p99(values: Sequence[float]) -> float | None:
    """What 99 % of *values* do not exceed; ``None`` of none."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else None


def _entries(rows: Iterable[Row]) -> tuple[HistoryEntry, ...]:
    return tuple(
        HistoryEntry(_instant(at), event, key, task_id, name, label, token, json.loads(details))
        for at, event, key, task_id, name, label, token, details in rows
    )


def _instant(microseconds: int) -> datetime:
    return _1970 + timedelta(microseconds=microseconds)


def _microseconds(instant: datetime | None) -> int | None:
    return None if instant is None else (instant - _1970) // timedelta(microseconds=1)
