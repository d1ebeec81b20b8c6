"""The other keys of a task that one key refuses: given back, or kept while it waits.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_dlock.core.edits import waited_for_elsewhere
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Drop, End, Mode, Outcome, Reason, Run, WaitMode
from celery_dlock.locks.hold_periods import more_time
from celery_dlock.locks.refused import Refused

if TYPE_CHECKING:
    from celery_dlock.stores.base import LockBackend

#: For so long a key stays reserved for a task that waits for the next one. Where the task ends, it
#: says so; this is for what nobody can say.
RESERVED_FOR = 3_600 * SECOND


@dataclass(frozen=True, slots=True)
class Request:
    """The *claims* that are asked for at once, in their order.

    *woken* is the key from whose queue the task was woken.
    """

    claims: Sequence[Claim]
    woken: str | None = None

    @property
    def turn_at_limit(self) -> Claim | None:
        """The turn for which a task that waits in the store was woken, if that key has a limit."""
        at_limit = (c for c in self.claims if c.key == self.woken and c.mode is Mode.LIMITED)
        return next((claim for claim in at_limit if claim.wait is WaitMode.QUEUE), None)


class OtherKeys:
    """What becomes of them. *heard* takes the store's reply, and *take_back* releases claims."""

    def __init__(
        self,
        backend: LockBackend,
        heard: Callable[[Any], Any],
        take_back: Callable[[Sequence[Claim], Outcome], object],
    ) -> None:
        self._backend = backend
        self._heard = heard
        self._take_back = take_back

    def settle(self, request: Request, taken: Sequence[Claim], refused: Refused) -> Refused:
        """Give back the keys that were *taken*, and turns at others that are of no use.

        Before a limit for which the task waits, another delivery of it may wait behind this one:
        that must stay, and is woken. Of a message that the store keeps nobody could tell whose.
        """
        turn = request.turn_at_limit
        if turn is not None:
            refused = self._stand_back(request.claims, refused, turn)
        if not waits_for_a_limit(refused):
            self._take_back(given_back(request, taken, refused), Outcome.OVER)
            return refused
        for claim in taken:
            left = kept_for_itself(claim, refused.claim.key)
            self._take_back([left], Outcome.OVER if claim.keep else Outcome.REPEAT)
        kept = [claim for claim in taken if claim.mode is not Mode.SHARED]
        if kept and self._waits_for_who_waits(refused.claim.key):
            for claim in kept:
                self._give_turn_back(claim, keeps_rank=True)
        return refused

    def _stand_back(self, claims: Sequence[Claim], refused: Refused, turn: Claim) -> Refused:
        """The task has a *turn*, and must wait for an earlier key: what comes of it.

        Whoever waits for an earlier key keeps nothing of the limits behind it, or two tasks might
        wait for each other. But the message goes with the turn, so it must be certain to wait at
        that key: not if another delivery of the task has it, which may be the one that has left the
        message where the *turn* is and is about to leave.
        """
        claim = refused.claim
        behind = claims[claims.index(claim) + 1 : claims.index(turn) + 1]
        if not behind or not refused.waits:
            return refused
        if not self._waits_alone(claim):
            return Refused(turn, Drop(Reason.WAITING))
        for later in reversed(behind):
            if later.mode is Mode.LIMITED:
                ends = self._give_turn_back(later, keeps_rank=claim.mode is not Mode.SHARED)
                if ends is not None and more_time(self._backend, later, ends, claims):
                    # It waits at *claim* now
                    self._heard(self._backend.leave(later, Outcome.OVER))
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
        verdict = self._heard(self._backend.enter(taken))
        if isinstance(verdict, Run):
            outcome = Outcome.UNUSED if keeps_rank else Outcome.REPEAT
            self._heard(self._backend.leave(taken, outcome))
        return verdict if isinstance(verdict, End) else None


def waits_for_a_limit(refused: Refused) -> bool:
    """Whether the task waits in the store for a key with a limit."""
    return refused.claim.mode is Mode.LIMITED and refused.waits


def kept_for_itself(claim: Claim, elsewhere: str) -> Claim:
    """Leaves its turn to its own task, which waits *elsewhere*; a reader just leaves.

    It asks for nothing more.
    """
    left = replace(claim, wait=WaitMode.NOT, begun=False)
    if claim.mode is Mode.SHARED:
        return left
    return replace(left, successor=claim.task, elsewhere=elsewhere, patience=RESERVED_FOR)


def given_back(request: Request, taken: Sequence[Claim], refused: Refused) -> list[Claim]:
    """What the store is told of the other claims: those that were *taken*, and turns of no use.

    All are in the order in which they were asked for.
    """
    claims = request.claims
    match refused.verdict:
        case _ if refused.waits:
            return list(taken)
        case End():
            return [claim for claim in claims if claim is not refused.claim]
        case _:
            at = claims.index(refused.claim)
            last = next((n for n, claim in enumerate(claims) if claim.key == request.woken), at)
            return [*taken, *claims[at + 1 : last + 1]]
