"""The locks of one holder: acquired, renewed, released, and the events about them.

A claim is written down before the store hears of it, and stays until the store has heard of its
release. So whatever interrupts the way (a time limit can, between any two lines) finds here what
there is to release, and does it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from celery_dlock.core.events import (
    Acquired,
    Confirmed,
    Lost,
    Released,
    Sink,
    Subject,
    Unavailable,
    Uncertain,
    Unreserved,
)
from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Busy, Claim, Drop, Mode, Outcome, Park, Same, WaitMode
from celery_dlock.errors import BackendUnavailable, LockLost
from celery_dlock.locks.current import end_current
from celery_dlock.locks.manager import Keeping, LockManager, Message, Successor, remembered
from celery_dlock.locks.refused import Refused

#: What is called with a key that is lost, and the reason.
Strike = Callable[[str, str], object]


@dataclass(slots=True, eq=False)
class Hold:
    """The claims of one holder, and its ``lease`` while it has the keys.

    Without a lease its ``claims`` are released in the end. ``strike`` is called with the key and
    the reason as soon as a key is lost, while the body may still run; ``after_loss`` with the lease
    after the event of the loss. A hold that ``ends_once`` emits one event when it is given back:
    that it was released, or else that it was lost. When it is given back, ``loss`` is the first
    loss. Where nothing ``is_heard`` of a lock that is taken and released, these are no events.
    """

    manager: LockManager
    emit: Sink
    subject: Subject
    strike: Strike | None = None
    after_loss: Callable[[Lease], object] | None = None
    ends_once: bool = False
    is_heard: Callable[[], bool] = lambda: True
    lease: Lease | None = field(default=None, init=False)
    loss: LockLost | None = field(default=None, init=False)
    claims: tuple[Claim, ...] = field(default=(), init=False)
    _since: float = field(default_factory=time.monotonic, init=False)
    _leaves: bool = field(default=False, init=False)

    def ask(
        self,
        claims: Sequence[Claim],
        max_hold: float | None = None,
        message: Message = None,
        woken: str | None = None,
        parents: Collection[str] = (),
        reserved: Collection[str] = (),
    ) -> Lease | Refused:
        """Ask for *claims* as :meth:`LockManager.acquire` does.

        From now on they have to be released, also if nobody answers; after a refusal those that
        :func:`to_release` names.
        """
        self.claims = tuple(claims)
        keeping = Keeping(max_hold, self._lost, self._doubt)
        answer = self.manager.acquire(claims, keeping, message, woken, parents, reserved)
        if not isinstance(answer, Refused):
            return answer
        for key in answer.unreserved:
            self.emit(Unreserved(self.subject, key, answer.claim.key))
        return self.refused(answer)

    def refused(self, refused: Refused) -> Refused:
        """Keep what the store's answer leaves to be released, of all claims or of its own one."""
        self.claims = to_release(refused, self.claims or (refused.claim,))
        return refused

    def add_claims(self, claims: Sequence[Claim]) -> None:
        """Have these released in the end, too, at keys without another claim."""
        keys = {claim.key for claim in self.claims}
        self.claims = (*self.claims, *(claim for claim in claims if claim.key not in keys))

    def taken(
        self, lease: Lease, took: float, waited: float = 0.0, since_woken: float | None = None
    ) -> None:
        """Hold the keys under *lease*; the durations are those of :class:`Acquired`."""
        self.lease = lease
        if self.is_heard():
            terms = lease.terms  # of the parents, too
            keys, tokens = tuple(t.claim.key for t in terms), tuple(t.token for t in terms)
            self.emit(Acquired(self.subject, keys, tokens, took, lease.ttl, waited, since_woken))
        self._since = time.monotonic()

    def give_back(
        self,
        outcome: Outcome,
        message: bytes | None = None,
        successor: Successor | None = None,
        remembers: int = 0,
    ) -> bool:
        """Release the keys; whether somebody else carries the task's message.

        Of a task that is done it *remembers* that for so many microseconds at least. Raises nothing
        of its own. Call it again if a signal has interrupted it.
        """
        lease = self.lease
        if lease is None:
            claims = [remembered(claim, remembers) for claim in self.claims]
            self.manager.take_back(claims, outcome)
            self.claims = ()
            return False
        carried = self._release(lease, outcome, message, successor, remembers)
        end_current(lease)
        self.lease = None
        if outcome is not Outcome.REPEAT:  # else its message may wait there
            self.claims = ()
        return carried

    def _release(
        self,
        lease: Lease,
        outcome: Outcome,
        message: bytes | None,
        successor: Successor | None,
        remembers: int,
    ) -> bool:
        terms = lease.terms
        if self._leaves:  # what the interrupted call has freed by now is no loss to be told
            for term in terms:
                term.first_to_tell()
        self._leaves = True
        if self.ends_once and lease.lost:  # a store that does not answer may take its time now
            self._tell_losses(lease, terms)
        carried = False
        try:
            carried = self.manager.release(lease, outcome, message, successor, remembers)
        except BackendUnavailable as exc:
            # The lease ends by itself. The result stands; a copy that comes later may run again.
            if self.ends_once:
                terms[0].lose(f"the lock store did not confirm its release: {exc}")
            else:
                self.emit(Unavailable(self.subject, str(exc)))
        else:
            is_loss = self.ends_once and any(term.noticed for term in terms)
            if not is_loss and self.is_heard():
                held, keys = time.monotonic() - self._since, (t.claim.key for t in terms)
                self.emit(Released(self.subject, tuple(keys), outcome, held))
        self._tell_losses(lease, terms)
        lease.give_back()
        return carried

    def _lost(self, term: Term, reason: str) -> None:
        """The keeper calls it: the body may still run, or may just be leaving."""
        if self.strike is not None:
            self.strike(term.key, reason)
        lease = self.lease
        if lease is not None and not self.ends_once:
            self._tell(lease, term, reason)

    def _doubt(self, term: Term, uncertain: bool) -> None:
        """The keeper calls it. Of a body that is leaving nobody needs to know."""
        if self.lease is None or self._leaves:
            return
        if uncertain:
            left = max(0.0, term.trusted_until - term.monotonic())
            self.emit(Uncertain(self.subject, term.key, left))
        else:
            self.emit(Confirmed(self.subject, term.key))

    def _tell_losses(self, lease: Lease, terms: Sequence[Term]) -> None:
        """Also those noticed only now: the process was stopped, or renewal starved."""
        for term in terms:
            if term.noticed:
                self.loss = self.loss or LockLost(term.key, term.noticed)
                self._tell(lease, term, term.noticed)

    def _tell(self, lease: Lease, term: Term, reason: str) -> None:
        if term.first_to_tell():
            self.emit(Lost(self.subject, term.key, reason, term.replaced))
            if self.after_loss is not None:
                self.after_loss(lease)


def to_release(refused: Refused, claims: Sequence[Claim]) -> tuple[Claim, ...]:
    """Those of *claims* that are to be released, with the result, should the task end nevertheless.

    At the keys that have its turn, its message, or a place that holds up others. And at the first
    of all, that the task is done: a duplicate asks there first.
    """
    claim, verdict = refused.claim, refused.verdict
    if isinstance(verdict, Drop | Same):  # a duplicate: its task does not end with it
        return ()
    in_order = sorted(claims, key=lambda c: c.order)
    nothing = isinstance(verdict, Busy) and claim.wait is not WaitMode.PLACE
    left = [] if nothing else [claim]
    if isinstance(verdict, Park) and claim.mode is Mode.LIMITED:  # those before are reserved for it
        left = in_order[: [c.key for c in in_order].index(claim.key) + 1]
    first = in_order[0]
    if claim.done_ttl and first.key not in {c.key for c in left}:
        left = [first, *left]
    return tuple(left)
