"""The one place that takes and frees locks.

Several keys are asked for in one order (``ask_order``), all or none: the first that is refused
gives back the ones before it. A request that got no answer may have landed, so it is taken back
too.

While a task waits for a *limit* it keeps the exclusive keys and the limits before it, in that
order: each as a turn that is reserved for this very task. So the few that fit through a narrow
limit are the only ones that stand before the wide one, and each is certain of both when its turn
comes there. Readers keep nothing: they would hold off a writer while they do nothing. While it
waits for a key *without* a limit it keeps its turn at those behind it that have none, either, and
nothing of a limit. So whoever has something of a limit waits only for limits, and whoever waits for
a key without one has at most keys of that kind that come later.

Limits are asked for as they are declared, and two tasks may declare them in two orders. So a task
that keeps something looks, after that, whether all slots of the limit for which it waits are kept
for tasks that wait, too, for limits of which the same is true; and then it keeps nothing. Of those
that wait for each other the last one to look sees all others: nobody waits for himself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from celery_dlock import forking
from celery_dlock.core.edits import waited_for_elsewhere
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
    Drop,
    End,
    EnterVerdict,
    Left,
    Mode,
    OperatorHold,
    Outcome,
    Park,
    Reason,
    Run,
    Same,
    WaitMode,
    task_id_of,
)
from celery_dlock.errors import BackendUnavailable, ConfigurationError, LockContended, LockLost
from celery_dlock.locks.hold_periods import more_time
from celery_dlock.locks.keeper import NOT_THERE, Keeper, OnDoubt, OnLost
from celery_dlock.locks.pending_releases import PendingReleases
from celery_dlock.stores.base import Trait

if TYPE_CHECKING:
    from celery_dlock.stores.base import LockBackend, Reply, Wake

logger = logging.getLogger("celery_dlock")

V = TypeVar("V")

#: What may have to wait in the store, or what writes it down if it has to.
Message = bytes | Callable[[], bytes | None] | None

Refusal = Park | Busy | Same | End | Drop

#: For so long a key stays reserved for a task that waits for the next one. Where the task ends, it
#: says so; this is for what nobody can say.
RESERVED_FOR = 3_600 * SECOND


@dataclass(frozen=True, slots=True)
class Refused:
    """The key that was not to be had, and why. Nothing is held."""

    claim: Claim
    verdict: Refusal

    @property
    def hold(self) -> OperatorHold | None:
        """What a person has put the key on."""
        return self.verdict.hold if isinstance(self.verdict, Park | Busy) else None

    @property
    def error(self) -> LockContended:
        """What is raised to whoever does not wait."""
        held = self.verdict if isinstance(self.verdict, Busy | Same) else Busy(None, 0, 0)
        if self.hold is not None:
            return LockContended(self.claim.key, None, held.left / SECOND, self.hold.who)
        who = None if held.holder is None else task_id_of(held.holder.task)
        return LockContended(self.claim.key, who, held.left / SECOND)

    @property
    def on_hold_for(self) -> float:
        """Seconds for which the key has been on hold."""
        if self.hold is None or not isinstance(self.verdict, Busy):
            return 0.0
        return (self.hold.until - self.hold.since - self.verdict.left) / SECOND


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
        self._is_parents = False
        forking.tell(self)

    def after_fork_in_child(self) -> None:
        """What is held is the parent's, who goes on renewing it and gives it back."""
        self._is_parents = True

    def acquire(
        self,
        claims: Sequence[Claim],
        keeping: Keeping,
        message: Message = None,
        woken: str | None = None,
        parents: Collection[str] = (),
        *,
        comes_back: bool = True,
    ) -> Lease | Refused:
        """Take every key of *claims*, or none.

        *message* is what waits at the first key that is taken, where a claim queues. *woken* is
        the key from whose queue the task was woken, which reserves that one for it. *parents* are
        those of the keys that are taken for the sake of the others.

        Raises :exc:`~celery_dlock.BackendUnavailable`; whatever had been taken is released as
        far as the store can be reached, and expires with its lease otherwise. A task that queues
        and *comes_back* then keeps its turn at its first key: nobody overtakes it meanwhile.
        """
        if self._is_parents:  # who would renew all that the parent holds, and give nothing back
            raise RuntimeError("this lock manager is that of the parent process")
        terms: list[Term] = []
        lease_of = self._backend.lease_of
        claims = [c if (ttl := lease_of(c.ttl)) == c.ttl else replace(c, ttl=ttl) for c in claims]
        claims.sort(key=lambda c: c.order)
        turn = None if woken is None else _turn_at_limit(claims, woken)
        try:
            for claim in claims:
                sent_at = self._monotonic()
                verdict = self._ask(claim, None if callable(message) else message, turn, claims)
                if not isinstance(verdict, Run):
                    refused = Refused(claim, verdict)
                    if turn is not None:
                        refused = self._stand_back(claims, refused, turn)
                    self._leave_others(claims, [term.claim for term in terms], refused, woken)
                    return refused
                token = 0 if claim.mode is Mode.SHARED else verdict.token + self._epoch
                terms.append(Term(claim, verdict.slot, token, sent_at, self._monotonic))
            for term in terms:
                self._keeper.watch(term, keeping.max_hold, keeping.on_lost, keeping.on_doubt)
            return self.lease(terms, parents)
        except BackendUnavailable:  # a lost reply may have landed
            self._take_back_unheard(claims, message if comes_back else None, parents)
            raise
        except BaseException:  # a time limit strikes anywhere
            self.take_back(claims, _unused(claims))
            raise

    def _ask(
        self, claim: Claim, message: bytes | None, turn: Claim | None, claims: Sequence[Claim]
    ) -> EnterVerdict:
        """Enter *claim*; with a *turn* at a later limit it only waits for another task.

        The task goes on waiting if it was woken to time out, and a hold has taken its time.
        """
        verdict: EnterVerdict | None = None
        if turn is not None and claims.index(claim) < claims.index(turn):
            looks = replace(claim, wait=WaitMode.LOOK)
            verdict = self._verdict(self._backend.enter(looks, message))
        if verdict is None or isinstance(verdict, Busy | Same):
            verdict = self._verdict(self._backend.enter(claim, message))
        if isinstance(verdict, End):
            longer = more_time(self._backend, claim, verdict, claims)
            if longer:
                claim = replace(claim, more_time=longer)
                verdict = self._verdict(self._backend.enter(claim, message))
        return verdict

    def _stand_back(self, claims: Sequence[Claim], refused: Refused, turn: Claim) -> Refused:
        """The task has a *turn*, and must wait for an earlier key: what comes of it.

        Whoever waits for an earlier key keeps nothing of the limits behind it, or two tasks might
        wait for each other. But the message goes with the turn, so it must be certain to wait at
        that key: not if another delivery of the task has it, which may be the one that has left the
        message where the *turn* is and is about to leave.
        """
        claim = refused.claim
        behind = claims[claims.index(claim) + 1 : claims.index(turn) + 1]
        if not behind or refused.verdict not in (Park(), Drop(Reason.WAITING)):
            return refused
        if not self._waits_alone(claim):
            return Refused(turn, Drop(Reason.WAITING))
        for later in reversed(behind):
            if later.mode is Mode.LIMITED:
                ends = self._give_turn_back(later, keeps_rank=claim.mode is not Mode.SHARED)
                if ends is not None and more_time(self._backend, later, ends, claims):
                    # It waits at *claim* now
                    self._verdict(self._backend.leave(later, Outcome.OVER))
                elif ends is not None:
                    return Refused(later, ends)
        return refused

    def _waits_alone(self, claim: Claim) -> bool:
        """Whether the store has the task's message there, and no delivery of it is at that key."""
        (state,) = self._backend.look([claim.key])
        tasks = {holder.task for holder in state.holders} | {turn.task for turn in state.grants}
        if claim.task in tasks:
            return False
        return self._backend.message(claim.key, claim.task) is not None

    def _leave_others(
        self, claims: Sequence[Claim], taken: Sequence[Claim], refused: Refused, woken: str | None
    ) -> None:
        """Give back the keys that were *taken*, and turns at others that are of no use.

        Before a limit for which the task waits, another delivery of it may wait behind this one:
        that must stay, and is woken. Of a message that the store keeps nobody could tell whose.
        """
        if not waits_for_a_limit(refused):
            self.take_back(given_back(claims, taken, refused, woken))
            return
        for claim in taken:
            left = kept_for_itself(claim, refused.claim.key)
            self.take_back([left], Outcome.OVER if claim.keep else Outcome.REPEAT)
        kept = [claim for claim in taken if claim.mode is not Mode.SHARED]
        if kept and self._waits_for_who_waits(refused.claim.key):
            for claim in kept:
                self._give_turn_back(claim, keeps_rank=True)

    def _waits_for_who_waits(self, key: str) -> bool:
        """Whether nobody runs, or is about to, who could make room at *key*.

        Each slot is kept for a task that waits, too, for a key of which the same is true.
        """
        seen, keys = set[str](), {key}
        while keys:
            seen |= keys
            waited_for = set[str]()
            for state in self._backend.look(sorted(keys)):
                elsewhere = waited_for_elsewhere(state)
                if not elsewhere:
                    return False
                waited_for |= elsewhere
            keys = waited_for - seen
        return True

    def _give_turn_back(self, claim: Claim, *, keeps_rank: bool) -> End | None:
        """Give back the turn at *claim*, by taking it; nothing that waits goes with it.

        Returns the verdict if the turn has come for the task to end.
        """
        taken = replace(claim, wait=WaitMode.NOT, keep=False, begun=False)
        verdict = self._verdict(self._backend.enter(taken))
        if isinstance(verdict, Run):
            outcome = Outcome.UNUSED if keeps_rank else Outcome.REPEAT
            self._verdict(self._backend.leave(taken, outcome))
        return verdict if isinstance(verdict, End) else None

    def lease(self, terms: Sequence[Term], parents: Collection[str]) -> Lease:
        """What the holder of *terms* is given; *parents* are the keys that are not its own."""
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

        On ``REPEAT`` a task that queues waits for the first of its keys again, with *message*. For
        a *successor* the keys stay reserved that it has, too. The parents are only given back. That
        it is done the store *remembers* for so many microseconds at least.

        A process that was forked off the holder frees nothing: the claims belong to its parent.
        Raises :exc:`~celery_dlock.BackendUnavailable` after every key was tried. What the store did
        not hear is said to it again in the background: it may have a copy of what is done, or hold
        up the next run of what is not.
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
                ends = outcome in (Outcome.DONE, Outcome.OVER)
                self._release_later(claim, outcome if ends else Outcome.UNUSED)
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
        Whether the store says that somebody carries the task, itself or a copy that runs. That a
        task is done is said again in the background: its message may wait there.
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
            if outcome is Outcome.DONE:
                self._release_later(claim, outcome)
            return False

    def _take_back_unheard(
        self, claims: Sequence[Claim], message: Message, parents: Collection[str]
    ) -> None:
        """Take back what the store may have given; with a *message* the task keeps its turn."""
        first = _waits_first(claims, parents)
        message = message() if callable(message) and first.has_message else message
        # Whoever is told that the store does not answer need not be told a second time.
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
            raise LockLost(terms[0].key, "it belongs to another process")
        ttl = self._backend.lease_of(math.ceil(ttl_to_trust(seconds) * SECOND))
        self._keeper.extend(terms, ttl)

    def _verdict(self, reply: Reply[V]) -> V:
        """Publish the messages that *reply* wakes, before this process goes on; its verdict."""
        if reply.wakes:
            self._wake(reply.wakes)
        return reply.verdict

    def _release_later(self, claim: Claim, outcome: Outcome) -> None:
        def release() -> None:
            self._verdict(self._backend.leave(replace(claim, again=True), outcome))

        self.tell_later(f"{claim.task} is {outcome}", release)

    def tell_later(self, what: str, tell: Callable[[], object]) -> None:
        """Call *tell* in the background, again until the store has heard *what* has ended."""
        self._pending_releases.retry(what, tell)

    def finish(self, within: float) -> None:
        """Wait until the store has heard what it did not hear, for so many seconds at most."""
        self._pending_releases.finish(within)

    def close(self) -> None:
        """Give the store's connections back, and end the thread that renews when it is idle.

        What the store did not hear is said to it once more, and no more from then on.
        """
        self._keeper.close()
        self._pending_releases.close()
        self._backend.close()


def _turn_at_limit(claims: Sequence[Claim], woken: str) -> Claim | None:
    """The turn for which a task that waits in the store was *woken*, if that key has a limit."""
    at_limit = (c for c in claims if c.key == woken and c.mode is Mode.LIMITED)
    return next((claim for claim in at_limit if claim.wait is WaitMode.QUEUE), None)


def _unused(claims: Sequence[Claim]) -> Outcome:
    """The outcome of *claims* under which no body has begun.

    What waits in a queue stays there: it may be all that is left of the message.
    """
    queues = any(claim.has_message for claim in claims)
    return Outcome.UNUSED if queues else Outcome.OVER


def _waits_first(claims: Sequence[Claim], parents: Collection[str]) -> Claim:
    """The one of *claims* by whose key their task is ordered, as ``Keys.first`` says."""
    own = [claim for claim in claims if claim.key not in parents]
    return next((claim for claim in own if claim.mode is not Mode.SHARED), own[0])


def remembered(claim: Claim, least: int) -> Claim:
    """*claim* of a task that the store is to remember for that long, if for any time."""
    return replace(claim, done_ttl=least) if 0 < claim.done_ttl < least else claim


def waits_for_a_limit(refused: Refused) -> bool:
    """Whether the task waits in the store for a key with a limit."""
    is_limit = refused.claim.mode is Mode.LIMITED
    return is_limit and refused.verdict in (Park(), Drop(Reason.WAITING))


def kept_for_itself(claim: Claim, elsewhere: str) -> Claim:
    """Leaves its turn to its own task, which waits *elsewhere*; a reader just leaves.

    It asks for nothing more.
    """
    left = replace(claim, wait=WaitMode.NOT, begun=False)
    if claim.mode is Mode.SHARED:
        return left
    return replace(left, successor=claim.task, elsewhere=elsewhere, patience=RESERVED_FOR)


def given_back(
    claims: Sequence[Claim], taken: Sequence[Claim], refused: Refused, woken: str | None
) -> list[Claim]:
    """What the store is told of the other *claims*: those that were *taken*, and turns of no use.

    All are in the order in which they were asked for.
    """
    match refused.verdict:
        case Park() | Drop(reason=Reason.WAITING):
            return list(taken)
        case End():
            return [claim for claim in claims if claim is not refused.claim]
        case _:
            at = claims.index(refused.claim)
            last = next((n for n, claim in enumerate(claims) if claim.key == woken), at)
            return [*taken, *claims[at + 1 : last + 1]]
