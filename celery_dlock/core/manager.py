"""The one place that takes and frees locks.

Several keys are taken in sorted order, all or none: the first that is refused gives back the
ones before it. A request that got no answer may have landed, so it is taken back too.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_dlock.core.keeper import Keeper, OnLost
from celery_dlock.core.lease import Lease, Monotonic, Term
from celery_dlock.core.state import Busy, Claim, Drop, Left, Mode, Outcome, Park, Run, Same
from celery_dlock.errors import BackendUnavailable

if TYPE_CHECKING:
    from celery_dlock.backends.base import LockBackend

logger = logging.getLogger("celery_dlock")

#: A fencing token is ``epoch * 2**EPOCH_SHIFT + what the store issued``. Stores issue less than
#: 2**53 (microseconds since 1970 reach that in the year 2255), so 1,023 epochs fit below 2**63.
EPOCH_SHIFT = 53

Refusal = Park | Busy | Same | Drop


@dataclass(frozen=True, slots=True)
class Refused:
    """The key that was not to be had, and why. Nothing is held."""

    claim: Claim
    verdict: Refusal


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long a lease is kept, in seconds, and whom to tell when it is lost."""

    max_hold: float | None
    on_lost: OnLost


class LockManager:
    """Takes and frees for one process; the keeper renews in between."""

    def __init__(
        self, backend: LockBackend, epoch: int = 0, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._backend = backend
        self._epoch = epoch << EPOCH_SHIFT
        self._monotonic = monotonic
        self._keeper = Keeper(backend.renew, monotonic)
        self._pid = os.getpid()

    def acquire(self, claims: Sequence[Claim], keeping: Keeping) -> Lease | Refused:
        """Take every key of *claims*, or none.

        Raises :exc:`~celery_dlock.BackendUnavailable`; whatever had been taken is given back as
        far as the store can be reached, and lapses with its lease otherwise.
        """
        terms: list[Term] = []
        try:
            for claim in sorted(claims, key=lambda c: c.key):
                sent_at = self._monotonic()
                verdict = self._backend.enter(claim).verdict
                if not isinstance(verdict, Run):
                    self.take_back([t.claim for t in terms])
                    return Refused(claim, verdict)
                token = verdict.token + self._epoch if claim.mode is Mode.EXCLUSIVE else 0
                terms.append(Term(claim, verdict.slot, token, sent_at, self._monotonic))
            for term in terms:
                self._keeper.watch(term, keeping.max_hold, keeping.on_lost)
            return Lease(tuple(terms), str(self._backend.guarantee))
        except BaseException:  # a time limit strikes anywhere, and a lost reply may have landed
            self.take_back(claims)
            raise

    def release(self, lease: Lease, outcome: Outcome) -> bool:
        """Give every key of *lease* back; whether somebody still carries the task's message.

        A process that was forked off the holder frees nothing: the claims belong to its parent.
        Raises :exc:`~celery_dlock.BackendUnavailable` after every key was tried.
        """
        if os.getpid() != self._pid:
            return True
        self._keeper.forget([term.claim for term in lease.terms])
        carried = True
        failed: BackendUnavailable | None = None
        for term in lease.terms:
            try:
                verdict = self._backend.leave(term.claim, outcome).verdict
            except BackendUnavailable as exc:
                failed = exc
                continue
            carried = carried and verdict.carried
            if not isinstance(verdict, Left):
                term.lose("the store had given it up")
        if failed is not None:
            raise failed
        return carried

    def take_back(self, claims: Sequence[Claim]) -> None:
        """Make sure that none of *claims* is held, as far as the store can be reached."""
        if os.getpid() != self._pid:
            return
        self._keeper.forget(claims)
        for claim in claims:
            try:
                self._backend.leave(claim, Outcome.OVER)
            except BackendUnavailable as exc:
                logger.warning("%s may be held until its lease ends: %s", claim.key, exc)

    def close(self) -> None:
        """Give the store's connections back."""
        self._backend.close()
