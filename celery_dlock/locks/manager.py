"""The one place that takes and frees locks.

Several keys are asked for in one order (``ask_order``), all or none: the first that is refused
gives back the ones before it. A request that got no answer may have landed, so it is taken back
too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from celery_dlock import forking
from celery_dlock.core.lease import (
    EPOCH_SHIFT,
    SECOND,
    Lease,
    Monotonic,
    Term,
    ttl_to_trust,
    unsleeping,
)
from celery_dlock.core.state import (
    Busy,
    Claim,
    EnterVerdict,
    Left,
    Mode,
    Outcome,
    Run,
    Same,
    WaitMode,
    task_id_of,
)
from celery_dlock.errors import BackendUnavailable, ConfigurationError, LockLost
from celery_dlock.locks.keeper import NOT_THERE, Keeper, OnDoubt, OnLost
from celery_dlock.locks.other_keys import OtherKeys, Request
from celery_dlock.locks.pending_releases import PendingReleases
from celery_dlock.locks.refused import Refused
from celery_dlock.stores.base import InUse, Trait

if TYPE_CHECKING:
    from celery_dlock.stores.base import LockBackend, Reply, Wake

logger = logging.getLogger("celery_dlock")

V = TypeVar("V")

#: What may have to wait in the store, or what writes it down if it has to.
Message = bytes | Callable[[], bytes | None] | None


@dataclass(frozen=True, slots=True)
class Successor:
    """The task that goes on where this one stops, at which of its keys, and for how many
    microseconds each is kept.
    """

    task: str
    keys: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long a lease is kept, in seconds, and whom to tell when it is lost, or uncertain."""

    max_hold: float | None
    on_lost: OnLost
    on_doubt: OnDoubt | None = None


class LockManager:
    """Takes and frees for one process; the keeper renews in between."""

    def __init__(
        self,
        backend: LockBackend,
        wake: Callable[[Sequence[Wake]], object],
        epoch: int = 0,
        monotonic: Monotonic = unsleeping,
    ) -> None:
        self._backend = backend
        self._wake = wake
        self._epoch = epoch << EPOCH_SHIFT
        self._monotonic = monotonic
        self._keeper = Keeper(backend.renew, monotonic)
        self._pending_releases = PendingReleases()
        self._other_keys = OtherKeys(backend, self._verdict, self.take_back)
        self._is_parents = False
        forking.tell(self)

    def after_fork_in_child(self) -> None:
        """The locks stay with the parent, which goes on renewing them and releases them."""
        self._is_parents = True

    def acquire(
        self,
        claims: Sequence[Claim],
        keeping: Keeping,
        message: Message = None,
        woken: str | None = None,
        parents: Collection[str] = (),
        reserved: Collection[str] = (),
    ) -> Lease | Refused:
        """Take every key of *claims*, or none.

        *message* is what waits at the first key that is taken, where a claim queues. *woken* is
        the key from whose queue the task was woken, which reserves that one for it. *parents* are
        those of the keys that are taken for the sake of the others, and *reserved* those that the
        attempt or the step before has kept for it: they stay so while it waits for another.

        Raises :exc:`~celery_dlock.BackendUnavailable`; whatever had been taken is released as
        far as the store can be reached, and expires with its lease otherwise. A task that queues
        then keeps its turn at its first key: nobody overtakes it until it asks again.
        """
        if self._is_parents:  # who would renew all that the parent holds, and give nothing back
            raise RuntimeError("this lock manager is that of the parent process")
        terms: list[Term] = []
        lease_of = self._backend.lease_of
        claims = [c if (ttl := lease_of(c.ttl)) == c.ttl else replace(c, ttl=ttl) for c in claims]
        claims.sort(key=lambda c: c.order)
        request = Request(claims, woken, reserved)
        try:
            for claim in claims:
                sent_at = self._monotonic()
                sent = None if callable(message) else message
                verdict = self._ask(claim, sent, request)
                if isinstance(verdict, Busy) and self._pending_releases.hurry(claim.key):
                    sent_at = self._monotonic()
                    verdict = self._ask(claim, sent, request)
                if not isinstance(verdict, Run):
                    taken = [term.claim for term in terms]
                    return self._other_keys.settle(request, taken, Refused(claim, verdict))
                token = 0 if claim.mode is Mode.SHARED else verdict.token + self._epoch
                terms.append(Term(claim, verdict.slot, token, sent_at, self._monotonic))
            for term in terms:
                self._keeper.watch(term, keeping.max_hold, keeping.on_lost, keeping.on_doubt)
            return self.lease(terms, parents)
        except BackendUnavailable:  # a lost reply may have landed
            self._take_back_unheard(claims, message, parents)
            raise
        except BaseException:  # a time limit strikes anywhere
            self.take_back(claims, _unused(claims))
            raise

    def _ask(self, claim: Claim, message: bytes | None, request: Request) -> EnterVerdict:
        """Enter *claim*; with a turn at a later limit it only waits for another task."""
        verdict: EnterVerdict | None = None
        claims, turn = request.claims, request.turn_at_limit if request.woken else None
        if turn is not None and claims.index(claim) < claims.index(turn):
            looks = replace(claim, wait=WaitMode.LOOK)
            verdict = self._verdict(self._backend.enter(looks, message))
        if verdict is None or isinstance(verdict, Busy | Same):
            verdict = self._verdict(self._backend.enter(claim, message))
        return verdict

    def lease(self, terms: Sequence[Term], parents: Collection[str]) -> Lease:
        """The lease for *terms*; *parents* are the keys that are not its own."""
        guarantee, certain = str(self._backend.guarantee), self._backend.certain
        extend, row_of = self._extend, self._backend.row_of
        return Lease(tuple(terms), guarantee, certain, extend, parents, row_of)

    def release(
        self,
        lease: Lease,
        outcome: Outcome,
        message: bytes | None = None,
        successor: Successor | None = None,
        remembers: int = 0,
    ) -> bool:
        """Give every key of *lease* back; whether somebody still carries the task's message.

        On ``REPEAT`` a task that queues waits for the first of its keys again, with *message*. The
        keys that its *successor* has, too, stay reserved for that. The parents are only released.
        The store *remembers* for so many microseconds at least that the task is done.

        A process that was forked off the holder frees nothing: the claims belong to its parent.
        Raises :exc:`~celery_dlock.BackendUnavailable` after every key was tried. A release
        that the store did not hear is repeated in the background: the store may have a duplicate of
        a task that is done, or hold up the next run of one that is not.
        """
        if self._is_parents:
            return True
        terms, own = lease.terms, lease.own
        for term in terms:
            term.notice()  # to give back may take longer than the lease lasts, and that is no loss
        self._keeper.forget([term.claim for term in terms])
        carried = True
        failed: BackendUnavailable | None = None
        first = own[0]
        for term in terms:
            claim = remembered(term.claim, remembers) if remembers else term.claim
            if term.leaves:  # an earlier try was interrupted, and nobody heard what was answered
                claim = replace(claim, again=True)
            term.leaves = True
            # It is put back into one queue only. It may have been woken from there by now and wait
            # at the next key, behind this very claim: that must stay.
            says = Outcome.UNUSED if outcome is Outcome.REPEAT and term is not first else outcome
            if successor is not None and term in own and term.key in successor.keys:
                claim = replace(claim, successor=successor.task, patience=successor.keys[term.key])
            try:
                verdict = self._verdict(self._backend.leave(claim, says, message))
            except BackendUnavailable as exc:
                failed = exc
                ends = outcome.is_final or outcome is Outcome.OVER
                self._release_later(claim, outcome if ends else Outcome.UNUSED, exc)
                continue
            if term is first or not claim.has_message:
                carried = carried and verdict.carried
            if not isinstance(verdict, Left):
                term.lose(NOT_THERE)
        if failed is not None:
            raise failed
        return carried

    def take_back(
        self,
        claims: Sequence[Claim],
        outcome: Outcome = Outcome.OVER,
    ) -> bool:
        """Make sure that *claims* neither hold nor wait, as far as the store can be reached.

        No body has begun under them, so nothing cools down, where this process knows of it.
        Whether the task's message is with the store, or with a duplicate that runs. That a task is
        done is repeated in the background until the store has heard it: its message may wait there.
        """
        if self._is_parents:
            return False
        carried = [self._take_back(claim, outcome, logging.WARNING) for claim in claims]
        return any(carried)

    def _take_back(
        self, claim: Claim, outcome: Outcome, level: int, message: bytes | None = None
    ) -> bool:
        """Release *claim*; that the store did not hear it is logged at *level*."""
        self._keeper.forget([claim])
        left = replace(claim, begun=False) if claim.cooldown else claim
        try:
            return self._verdict(self._backend.leave(left, outcome, message)).carried
        except BackendUnavailable as exc:
            logger.log(level, "%s may be held until its lease expires: %s", claim.key, exc)
            if outcome.is_final:
                self._release_later(claim, outcome, exc)
            return False

    def _take_back_unheard(
        self, claims: Sequence[Claim], message: Message, parents: Collection[str]
    ) -> None:
        """Take back what the store may have given; with a *message* the task keeps its turn."""
        first = next(claim for claim in claims if claim.key not in parents)  # as ``Keys.first``
        message = message() if callable(message) and first.has_message else message
        # That the store does not answer was told already.
        for claim in claims:
            if claim is first and claim.has_message and isinstance(message, bytes):
                unheard = replace(claim, begun=False)
                self._take_back(unheard, Outcome.REPEAT, logging.DEBUG, message)
            else:
                self._take_back(claim, _unused(claims), logging.DEBUG)

    def _extend(self, terms: Sequence[Term], seconds: float) -> None:
        if Trait.LEASE_PER_TASK not in self._backend.traits:
            raise ConfigurationError(
                f"extend() needs a store with the trait {Trait.LEASE_PER_TASK!s}, which "
                f"{type(self._backend).__name__} lacks: all its locks end together"
            )
        if self._is_parents:
            raise LockLost(terms[0].key, "it belongs to the process that forked this one")
        ttl = self._backend.lease_of(math.ceil(ttl_to_trust(seconds) * SECOND))
        self._keeper.extend(terms, ttl)

    def _verdict(self, reply: Reply[V]) -> V:
        """Publish the messages that *reply* wakes, before this process goes on; its verdict."""
        if reply.wakes:
            self._wake(reply.wakes)
        return reply.verdict

    def _release_later(self, claim: Claim, outcome: Outcome, error: BackendUnavailable) -> None:
        if isinstance(error, InUse):  # nothing is wrong with the store, so nobody else says it
            logger.warning("%s", error)

        def release() -> None:
            self._verdict(self._backend.leave(replace(claim, again=True), outcome))

        what = f"task {task_id_of(claim.task)} is {outcome} and has released {claim.key!r}"
        self._pending_releases.retry(what, release, claim.key)

    def tell_later(self, what: str, tell: Callable[[], object]) -> None:
        """Call *tell* in the background, again until the store has heard *what* has ended."""
        self._pending_releases.retry(what, tell)

    def finish(self, within: float) -> None:
        """Wait until the store has heard what it did not hear, for so many seconds at most."""
        self._pending_releases.finish(within)

    def close(self) -> None:
        """Give the store's connections back, and end the thread that renews when it is idle.

        A release that the store did not hear is repeated once more, and not from then on.
        """
        self._keeper.close()
        self._pending_releases.close()
        self._backend.close()


def _unused(claims: Sequence[Claim]) -> Outcome:
    """The outcome of *claims* under which no body has begun.

    What waits in a queue stays there: it may be all that is left of the message.
    """
    queues = any(claim.has_message for claim in claims)
    return Outcome.UNUSED if queues else Outcome.OVER


def remembered(claim: Claim, least: int) -> Claim:
    """*claim* of a task that the store is to remember for that long, if for any time."""
    return replace(claim, done_ttl=least) if 0 < claim.done_ttl < least else claim
