"""Renews the leases of one process: one thread, all of them in one round trip.

A lease is renewed every third of its ttl, so two renewals may fail before it ends. The thread
learns four ways that a lock is gone: the store says so, no renewal got through before the lease
could no longer be trusted, the body has held it for longer than it may (``max_hold``), or a newer
task asks for it. It then tells the holder, once, and stops renewing. A lease that is uncertain, and
that is certain again, is told when a renewal of it was answered or has failed.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from celery_dlock.core.lease import SECOND, Monotonic, Term, margin, unsleeping
from celery_dlock.core.sentences import listed
from celery_dlock.core.state import (
    Claim,
    NotHeld,
    Renewed,
    RenewVerdict,
    Replaced,
    Unknown,
    task_id_of,
)
from celery_dlock.errors import BackendUnavailable, ConfigurationError, LockLost
from celery_dlock.locks.throttled_warning import ThrottledWarning

logger = logging.getLogger("celery_dlock")

#: Why a lock is lost that its store does not have any more: the store knows no more than that.
NOT_THERE = (
    "it is no longer in the lock store: released by an operator, expired, or lost with its data"
)

Renew = Callable[[Sequence[Claim]], list[RenewVerdict]]
OnLost = Callable[[Term, str], None]

#: What ends a holding that goes on for too long.
BOUND = "the task's hard time limit, or dlock_max_hold"

#: Told whether a lease is uncertain, when that has changed.
OnDoubt = Callable[[Term, bool], None]


@dataclass(slots=True)
class Watch:
    """One term to keep alive: when its renewal is ``due``, and ``until`` (monotonic) when it has
    been held long enough.
    """

    term: Term
    due: float
    until: float
    on_lost: OnLost
    on_doubt: OnDoubt | None
    uncertain: bool = False


class Keeper:
    """Keeps terms alive from :meth:`watch` to :meth:`forget`."""

    def __init__(self, renew: Renew, monotonic: Monotonic = unsleeping) -> None:
        self._renew = renew
        self._monotonic = monotonic
        # A lock of its own, taken in one step: Condition.__enter__ is Python code, and a soft time
        # limit that strikes in it would leave it locked for good.
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        # One renewal at a time, or the usual one could overtake one for longer.
        self._asking = threading.Lock()
        self._warning = ThrottledWarning(monotonic)
        self._watches: dict[Claim, Watch] = {}
        self._wakes_at = math.inf
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(
        self, term: Term, max_hold: float | None, on_lost: OnLost, on_doubt: OnDoubt | None = None
    ) -> None:
        """Renew *term* in the background; *on_lost* is called at most once, in another thread.

        So is *on_doubt*, each time that it becomes uncertain or certain.
        """
        until = math.inf if max_hold is None else term.since + max_hold
        watch = Watch(term, min(term.since + term.ttl / 3, until), until, on_lost, on_doubt)
        with self._mutex:
            self._watches[term.claim] = watch
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="celery-dlock-keeper", daemon=True)
                thread.start()
                self._thread = thread
            elif watch.due < self._wakes_at:
                self._changed.notify()

    def close(self) -> None:
        """End the thread, as soon as there is nothing to renew."""
        with self._mutex:
            self._closed = True
            self._changed.notify()

    def forget(self, claims: Iterable[Claim]) -> None:
        """Stop renewing; the thread is not woken for this, it finds nothing to do when it is."""
        with self._mutex:
            for claim in claims:
                self._watches.pop(claim, None)

    def _run(self) -> None:
        while True:
            with self._mutex:
                if self._closed and not self._watches:
                    self._thread = None
                    return
                now = self._monotonic()
                self._wakes_at = min((w.due for w in self._watches.values()), default=math.inf)
                if self._wakes_at > now:
                    idle = math.isinf(self._wakes_at)
                    self._changed.wait(
                        None if idle else min(self._wakes_at - now, threading.TIMEOUT_MAX)
                    )
                    continue
            try:
                self.tend()
            except Exception:  # a defect must not end the thread that keeps every other lock
                logger.exception("the renewal of leases failed, trying again")
                now = self._monotonic()
                self._later([watch for watch in self._all() if watch.due <= now])

    def tend(self) -> None:
        """Renew what is due now, and what will be soon, in one round trip."""
        with self._asking:
            self._tend()

    def extend(self, terms: Sequence[Term], ttl: int) -> None:
        """Renew *terms* once for *ttl* microseconds; the next renewal is due as that time ends.

        Raises :exc:`~celery_dlock.LockLost`, :exc:`~celery_dlock.BackendUnavailable`, and
        :exc:`~celery_dlock.ConfigurationError` when they may not be held for so long.
        """
        with self._asking:
            watches = [self._watch_of(term) for term in terms]
            sent_at = self._monotonic()
            left = min(watch.until for watch in watches) - sent_at
            if ttl / SECOND - margin(ttl / SECOND) > left:
                raise ConfigurationError(f"extend() goes beyond {BOUND}: {left:.1f} s are left")
            longer = [replace(w.term.claim, ttl=max(ttl, w.term.claim.ttl)) for w in watches]
            verdicts = self._renew(longer)
            for watch, claim, verdict in zip(watches, longer, verdicts, strict=True):
                match verdict:
                    case Renewed():
                        watch.term.renewed(sent_at, claim.ttl / SECOND)
                        end = watch.term.trusted_until - watch.term.ttl * 2 / 3
                        watch.due = min(max(watch.due, end), watch.until)
                    case NotHeld():
                        self._lose(watch, NOT_THERE)
                        raise LockLost(watch.term.key, NOT_THERE)
                    case Replaced(by=by):
                        self._give_way(watch, by)
                        raise LockLost(watch.term.key, watch.term.lost or "")
                    case Unknown():
                        raise BackendUnavailable(f"the store of {watch.term.key!r} did not answer")
                    case _:
                        assert_never(verdict)
            self._tell_doubts(watches)

    def _watch_of(self, term: Term) -> Watch:
        with self._mutex:
            watch = self._watches.get(term.claim)
        if watch is None or term.lost:
            raise LockLost(term.key, term.lost or "it was released")
        return watch

    def _tend(self) -> None:
        now = self._monotonic()
        soon = [w for w in self._all() if w.due <= now + w.term.ttl / 6]
        for watch in soon:
            if now >= watch.until:
                longest = watch.until - watch.term.since
                self._lose(watch, f"it was held for longer than {longest:g} s ({BOUND})")
            elif watch.term.lost:
                self._lose(watch, watch.term.lost)
        alive = [w for w in soon if not w.term.lost]
        if alive:
            self._renew_all(alive)
            self._tell_doubts(alive)

    def _all(self) -> list[Watch]:
        with self._mutex:
            return list(self._watches.values())

    def _renew_all(self, watches: list[Watch]) -> None:
        sent_at = self._monotonic()
        try:
            verdicts = self._renew([w.term.claim for w in watches])
        except BackendUnavailable as exc:
            keys = listed([repr(w.term.key) for w in watches])
            self._warning.warn("the leases of %s are not renewed, trying again: %s", keys, exc)
            self._later(watches)
            return
        self._warning.resolved("leases can be renewed again")
        if len(verdicts) != len(watches):
            raise RuntimeError(f"{len(verdicts)} verdicts for {len(watches)} claims")
        for watch, verdict in zip(watches, verdicts, strict=True):
            match verdict:
                case Renewed():
                    watch.term.renewed(sent_at)
                    watch.due = min(sent_at + watch.term.ttl / 3, watch.until)
                case NotHeld():
                    self._lose(watch, NOT_THERE)
                case Replaced(by=by):
                    self._give_way(watch, by)
                case Unknown():
                    self._later([watch])
                case _:
                    assert_never(verdict)

    def _later(self, watches: list[Watch]) -> None:
        now = self._monotonic()
        for watch in watches:
            again = min(watch.term.ttl / 10, 1.0)
            watch.due = min(now + again, watch.term.trusted_until, watch.until)

    def _tell_doubts(self, watches: list[Watch]) -> None:
        """Tell them all in one thread: a sink may be slow, and the next renewal cannot wait."""
        calls: list[Callable[[], None]] = []
        for watch in watches:
            uncertain = watch.term.uncertain
            if uncertain is not watch.uncertain and watch.on_doubt and not watch.term.lost:
                watch.uncertain = uncertain
                calls.append(partial(watch.on_doubt, watch.term, uncertain))

        def tell() -> None:
            for call in calls:
                call()

        if calls:
            threading.Thread(target=tell, name="celery-dlock-doubt", daemon=True).start()

    def _give_way(self, watch: Watch, by: str) -> None:
        watch.term.replaced = task_id_of(by)
        self._lose(watch, f"replaced by {watch.term.replaced}")

    def _lose(self, watch: Watch, reason: str) -> None:
        with self._mutex:
            if self._watches.pop(watch.term.claim, None) is None:
                return  # the body has left in the meantime
        watch.term.lose(reason)
        threading.Thread(
            target=watch.on_lost, args=(watch.term, reason), name="celery-dlock-lost", daemon=True
        ).start()
