"""Leases for stores that have one lease for a whole process.

There a holder's row stays for as long as the process lives, even when nobody renews the lock: a
request whose reply was lost has left one, or a body has held on for too long. So each process
watches over its own rows, and drops one whose time has passed without a renewal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from celery_dlock.core.lease import SECOND, Monotonic, unsleeping
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.consensus.rows import Name

logger = logging.getLogger("celery_dlock")

#: Seconds between two looks at most, and so until a row is tried again that could not be dropped.
PAUSE = 1.0


class LocalLeases:
    """Drops the rows that are expected to be renewed and are not.

    A row whose time has passed is *expired* until the store has heard that it is dropped; it can
    not be saved any more, because the request to drop it may be under way.
    """

    def __init__(self, drop: Callable[[Name], None], monotonic: Monotonic = unsleeping) -> None:
        self._drop = drop
        self._monotonic = monotonic
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._ends: dict[Name, float] = {}
        self._granted: set[Name] = set()
        self._expired: dict[Name, None] = {}  # in the order in which they are tried
        self._thread: threading.Thread | None = None

    def expect(self, row: Name, ttl: int) -> None:
        """*row* may stay for *ttl* microseconds from now on, unless it is renewed.

        Raises :exc:`~celery_dlock.errors.BackendUnavailable` while the one before is expired.
        """
        with self._mutex:
            if row in self._expired:
                raise BackendUnavailable(
                    f"a lease of this process at {row.key!r} has expired, and is not yet released "
                    "in the lock store: ask again in a moment"
                )
            self._may_stay(row, self._monotonic() + ttl / SECOND)

    def answered(self, row: Name) -> None:
        """*row* may be there from now on; if its time has passed by then, it has to be dropped."""
        with self._mutex:
            if row not in self._ends:
                self._may_stay(row, self._monotonic())

    def granted(self, row: Name) -> None:
        """*row* is there, and somebody relies on it: its end is a loss, of which the log tells."""
        with self._mutex:
            self._granted.add(row)

    def renew(self, row: Name, ttl: int) -> bool:
        """Extend the time of a row that is there already; ``False`` if it has passed."""
        with self._mutex:
            now = self._monotonic()
            if self._ends.get(row, now) <= now:
                return False
            self._may_stay(row, now + ttl / SECOND)
            return True

    def forget(self, row: Name) -> None:
        """*row* is gone for good; the thread is not woken for this."""
        with self._mutex:
            self._ends.pop(row, None)
            self._granted.discard(row)

    def knows(self, row: Name) -> bool:
        """Whether *row* may be there, because it was asked for and not forgotten."""
        with self._mutex:
            return row in self._ends or row in self._expired

    def clear(self) -> None:
        """All rows are gone."""
        with self._mutex:
            self._ends.clear()
            self._granted.clear()
            self._expired.clear()

    def _may_stay(self, row: Name, end: float) -> None:
        """It may have been promised a later end before."""
        self._ends[row] = max(end, self._ends.get(row, end))
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(
                target=self._run, name="celery-dlock-local-leases", daemon=True
            )
            thread.start()
            self._thread = thread  # only now: a time limit that strikes before leaves none

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._ends and not self._expired:
                    self._thread = None
                    return
                now = self._monotonic()
                late = {row for row, end in self._ends.items() if end <= now}
                self._expired |= dict.fromkeys(late)
                for row in late:
                    del self._ends[row]
                lost = late & self._granted
                self._granted -= lost
                if not late:  # a shorter ttl than any before is late by a pause at most
                    soonest = min(self._ends.values(), default=now + PAUSE)
                    self._changed.wait(min(soonest - now, PAUSE))
                expired = list(self._expired)
            for row in lost:  # said once; the store may have to be told again each second
                logger.warning("%r was not renewed in time and is released", row.key)
            for row in expired:
                if not self._let_go(row):
                    break  # each try of an outage has left one, and none would be heard

    def _let_go(self, row: Name) -> bool:
        """Whether the store answers; if not, the others come before *row* the next time."""
        try:
            self._drop(row)
        except BackendUnavailable as exc:
            logger.debug("%r is not renewed and cannot be released: %s", row.key, exc)
            with self._mutex:
                if row in self._expired:
                    self._expired[row] = self._expired.pop(row)
            return False
        except Exception:  # a defect must not end the thread that frees the others
            logger.exception("%r is not renewed and cannot be released", row.key)
        else:
            with self._mutex:
                self._expired.pop(row, None)
        return True
