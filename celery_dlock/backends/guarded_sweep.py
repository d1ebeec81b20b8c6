"""Looks after the keys of a store that are due, and after what processes that are gone have left.

A key that cannot be read, or that others change without a pause, must not keep the rest waiting. So
it is left alone for a while, and whoever was called before it failed is called.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from celery_dlock.backends.base import Clock, Reply, Swept, Wake
from celery_dlock.backends.record import UnreadableKey
from celery_dlock.backends.rows import PARTS, Kind, Name, Rows
from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.lease import SECOND
from celery_dlock.errors import BackendUnavailable

logger = logging.getLogger("celery_dlock")

#: Seconds between two looks for what processes have left behind that are gone.
TIDY_EVERY = 600.0

#: Seconds for which a key is left alone that has failed.
REST = 30.0

#: Of so many keys that fail one after another the cause is the store.
STORE_AWAY = 3


class Sweeping:
    """The sweeps of one process, in which *reap* lets time pass on a key."""

    def __init__(self, rows: Rows, reap: Callable[[str], Reply[None]], now: Clock) -> None:
        self._rows = rows
        self._reap = reap
        self._now = now
        self._resting: dict[str, float] = {}
        self._tidy_at = time.monotonic() + TIDY_EVERY * CHANCE.random()

    def sweep(self, limit: int) -> Swept:
        now = self._now()
        listed = self._due(limit + 1)
        overdue = [name for name in listed if int(name.part) <= now][:limit]
        wakes = self._reaped(name.key for name in overdue)
        try:
            wakes += self._tidied(limit)
            later = self._due(1) if overdue else listed
        except BackendUnavailable:
            if not wakes:
                raise
            later = overdue  # they are called, and the next sweep comes at once
        return Swept(tuple(wakes), max(0, int(later[0].part) - now) / SECOND if later else None)

    def _due(self, limit: int) -> list[Name]:
        now = time.monotonic()
        self._resting = {key: until for key, until in self._resting.items() if until > now}
        listed = self._rows.due(limit + len(self._resting))
        return [name for name in listed if name.key not in self._resting]

    def _reaped(self, keys: Iterable[str]) -> list[Wake]:
        wakes: list[Wake] = []
        reaped = failed = 0
        for key in keys:
            try:
                wakes += self._reap(key).wakes
                reaped, failed = reaped + 1, 0
            except Exception as exc:
                self._resting[key] = time.monotonic() + REST
                logger.warning("nobody is called for %r", key, exc_info=True)
                if not isinstance(exc, BackendUnavailable) or isinstance(exc, UnreadableKey):
                    continue
                failed += 1
                if failed == STORE_AWAY and not reaped:
                    raise
                if failed == STORE_AWAY:
                    break
        return wakes

    def _tidied(self, limit: int) -> list[Wake]:
        """Keys are due only when messages wait; others may be left behind by who is gone."""
        if time.monotonic() < self._tidy_at:
            return []
        self._tidy_at = time.monotonic() + TIDY_EVERY * CHANCE.uniform(0.5, 1.5)
        part = CHANCE.randrange(PARTS)
        self._rows.tidy(part)
        names = self._rows.names(Kind.GUARD, part)
        return self._reaped(name.key for name in CHANCE.sample(names, min(limit, len(names))))
