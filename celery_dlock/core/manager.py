"""The one place that takes and frees locks.

Several keys are taken in sorted order, all or none: the first that is refused gives back the
ones before it. A request that got no answer may have landed, so it is taken back too.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from celery_dlock.core.keeper import Keeper, OnLost
from celery_dlock.core.later import Later
from celery_dlock.core.lease import Lease, Monotonic, Term
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    End,
    Left,
    Mode,
    Outcome,
    Park,
    Reason,
    Run,
    Same,
    Wait,
)
from celery_dlock.errors import BackendUnavailable

if TYPE_CHECKING:
    from celery_dlock.backends.base import LockBackend, Reply, Wake

logger = logging.getLogger("celery_dlock")

V = TypeVar("V")

#: A fencing token is ``epoch * 2**EPOCH_SHIFT + what the store issued``. Stores issue less than
#: 2**53 (microseconds since 1970 reach that in the year 2255), so 1,023 epochs fit below 2**63.
EPOCH_SHIFT = 53

Refusal = Park | Busy | Same | End | Drop


@dataclass(frozen=True, slots=True)
class Refused:
    """The key that was not to be had, and why. Nothing is held."""

    claim: Claim
    verdict: Refusal


@dataclass(frozen=True, slots=True)
class Successor:
    """The task that goes on where this one stops, and for how many microseconds to expect it."""

    task: str
    patience: int


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long a lease is kept, in seconds, and whom to tell when it is lost."""

    max_hold: float | None
    on_lost: OnLost


class LockManager:
    """Takes and frees for one process; the keeper renews in between."""

    def __init__(
        self,
        backend: LockBackend,
        wake: Callable[[Sequence[Wake]], object],
        epoch: int = 0,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._backend = backend
        self._wake = wake
        self._epoch = epoch << EPOCH_SHIFT
        self._monotonic = monotonic
        self._keeper = Keeper(backend.renew, monotonic)
        self._later = Later(lambda claim, outcome: self._told(backend.leave(claim, outcome)))
        self._pid = os.getpid()

    def acquire(
        self,
        claims: Sequence[Claim],
        keeping: Keeping,
        message: bytes | None = None,
        called: str | None = None,
    ) -> Lease | Refused:
        """Take every key of *claims*, or none.

        *message* is what waits at the first key that is taken, where a claim queues; *called* is
        the key from whose queue the task was called, which reserves that one for it.

        Raises :exc:`~celery_dlock.BackendUnavailable`; whatever had been taken is given back as
        far as the store can be reached, and lapses with its lease otherwise.
        """
        terms: list[Term] = []
        try:
            for claim in sorted(claims, key=lambda c: c.key):
                sent_at = self._monotonic()
                verdict = self._told(self._backend.enter(claim, message))
                if not isinstance(verdict, Run):
                    taken = [term.claim for term in terms]
                    self.take_back([*taken, *_useless(claims, claim, verdict, called)])
                    return Refused(claim, verdict)
                token = verdict.token + self._epoch if claim.mode is Mode.EXCLUSIVE else 0
                terms.append(Term(claim, verdict.slot, token, sent_at, self._monotonic))
            for term in terms:
                self._keeper.watch(term, keeping.max_hold, keeping.on_lost)
            return Lease(tuple(terms), str(self._backend.guarantee))
        except BaseException:  # a time limit strikes anywhere, and a lost reply may have landed
            # What waits in a queue stays there: it may be all that is left of the message.
            queues = any(claim.wait in (Wait.QUEUE, Wait.LOOK) for claim in claims)
            self.take_back(claims, Outcome.ABANDONED if queues else Outcome.OVER)
            raise

    def release(
        self,
        lease: Lease,
        outcome: Outcome,
        message: bytes | None = None,
        successor: Successor | None = None,
    ) -> bool:
        """Give every key of *lease* back; whether somebody still carries the task's message.

        On ``REPEAT`` a task that queues waits for the first of its keys again, with *message*. For
        a *successor* every key stays reserved.

        A process that was forked off the holder frees nothing: the claims belong to its parent.
        Raises :exc:`~celery_dlock.BackendUnavailable` after every key was tried. What the store did
        not hear is said to it again in the background: it may have a copy of what is done.
        """
        if os.getpid() != self._pid:
            return True
        self._keeper.forget([term.claim for term in lease.terms])
        carried = True
        failed: BackendUnavailable | None = None
        for term in lease.terms:
            if outcome is Outcome.REPEAT and term is not lease.terms[0]:
                outcome = Outcome.OVER  # it waits in one queue only
            claim = term.claim
            if successor is not None:
                claim = replace(claim, successor=successor.task, patience=successor.patience)
            try:
                verdict = self._told(self._backend.leave(claim, outcome, message))
            except BackendUnavailable as exc:
                failed = exc
                if outcome in (Outcome.DONE, Outcome.OVER):
                    self._later.say(claim, outcome)
                continue
            if term is lease.terms[0] or claim.wait not in (Wait.QUEUE, Wait.LOOK):
                carried = carried and verdict.carried  # a message waits for the first key only
            if not isinstance(verdict, Left):
                term.lose("the store had given it up")
        if failed is not None:
            raise failed
        return carried

    def take_back(self, claims: Sequence[Claim], outcome: Outcome = Outcome.OVER) -> bool:
        """Make sure that *claims* neither hold nor wait, as far as the store can be reached.

        Whether the store says that somebody carries the task, itself or a copy that runs.
        """
        if os.getpid() != self._pid:
            return False
        self._keeper.forget(claims)
        carried = False
        for claim in claims:
            try:
                carried |= self._told(self._backend.leave(claim, outcome)).carried
            except BackendUnavailable as exc:
                logger.warning("%s may be held until its lease ends: %s", claim.key, exc)
        return carried

    def _told(self, reply: Reply[V]) -> V:
        """Whoever was called is told before this process goes on."""
        if reply.wakes:
            self._wake(reply.wakes)
        return reply.verdict

    def close(self) -> None:
        """Give the store's connections back."""
        self._backend.close()


def _useless(
    claims: Sequence[Claim], refused: Claim, verdict: Refusal, called: str | None
) -> list[Claim]:
    """The turns of other keys that are of no more use to the task.

    One that waits keeps them: two tasks that both gave up what the other one needs would go round
    in circles. It cannot be a deadlock, because a turn is kept only for a lower key.
    """
    match verdict:
        case Park() | Drop(reason=Reason.WAITING):
            return []
        case End():
            return [claim for claim in claims if claim is not refused]
        case _:
            return [claim for claim in claims if claim.key == called != refused.key]
