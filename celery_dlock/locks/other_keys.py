"""The other keys of a task that one key refuses: given back, or kept while it waits.

While a task waits for a *limit* it keeps the exclusive keys and the limits before it, in that
order: each as a turn that is reserved for this very task. So the few that fit through a narrow
limit are the only ones that stand before the wide one, and each is certain of both when its turn
comes there. Readers keep nothing: they would hold off a writer while they do nothing. While it
waits for a key *without* a limit it keeps its turn at those behind it that have none, either, and
nothing of a limit.

Keys that were reserved for the task (by the attempt or the step of a chain before it) are kept
whatever it waits for, and however it waits.

So tasks may come to wait for each other: limits are asked for as they are declared, which differs
from task to task, and who has a reserved key may wait for any. A task that keeps something looks,
after that, whether all slots of the key for which it waits are kept for tasks that wait, too, for
keys of which the same is true; and then it keeps nothing. Of those that wait for each other the
last one to look sees all others: nobody waits for himself. One that has only been woken at a later
key gives way first: it is woken again until it answers, and looks each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_dlock.core.edits import turns_of_all_slots
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    End,
    Grant,
    KeyState,
    Mode,
    Outcome,
    Reason,
    Run,
    WaitMode,
    task_id_of,
)
from celery_dlock.locks.refused import Refused

if TYPE_CHECKING:
    from celery_dlock.stores.base import LockBackend

#: For so long a limit, and what comes before it, stays reserved for a task that waits for the next
#: limit. A task that ends releases it; this is for one whose worker has died.
RESERVED_FOR = 3_600 * SECOND

#: Other keys stay reserved for as long as it may wait; a day, if its policy sets no end to that.
WAITS_FOR = 86_400 * SECOND

#: For so long after it is due a key stays reserved for a task that comes by itself.
EXPECTED_FOR = 60 * SECOND


@dataclass(frozen=True, slots=True)
class Request:
    """The *claims* that are asked for at once, in their order.

    *woken* is the key from whose queue the task was woken, and *reserved* are those that its
    predecessor has kept for it.
    """

    claims: Sequence[Claim]
    woken: str | None = None
    reserved: Collection[str] = ()

    @property
    def turn_at_limit(self) -> Claim | None:
        """The turn for which a task that waits in the store was woken, if that key has a limit."""
        at_limit = (c for c in self.claims if c.key == self.woken and c.mode is Mode.LIMITED)
        return next((claim for claim in at_limit if claim.wait is WaitMode.QUEUE), None)

    def is_reserved(self, claim: Claim) -> bool:
        """Whether the turn at the key of *claim* is not given up while the task waits."""
        return claim.mode is not Mode.SHARED and claim.key in self.reserved


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
        """Give back the keys that were *taken*, and turns at others that are of no use; keep those
        that the task is to find again.
        """
        if len(request.claims) == 1:
            return refused
        refused, behind = self._turns_behind(request, refused)
        before = [claim for claim in taken if _is_kept(request, claim, refused)]
        kept = [*before, *behind]
        left = [c for c in given_back(request, taken, refused) if c not in kept]
        self._take_back(left, Outcome.OVER)
        for claim in before:
            self._leave_for_itself(claim, refused)
        kept = [claim for claim in kept if claim.mode is not Mode.SHARED]
        refused = self._give_way(request, refused)
        is_reserved = any(map(request.is_reserved, kept))
        if not (kept and self._waits_for_itself(refused.claim, moved=is_reserved)):
            return refused
        for claim in kept:
            self._give_turn_back(claim, keeps_rank=True)
        return replace(refused, unreserved=tuple(c.key for c in kept if request.is_reserved(c)))

    def _give_way(self, request: Request, refused: Refused) -> Refused:
        """The task waits for a key that is only reserved: it gives back its turns at later ones, if
        those for whom it is reserved wait for them.
        """
        behind = request.claims[request.claims.index(refused.claim) + 1 :]
        later = [claim for claim in behind if not request.is_reserved(claim)]
        is_limit = (
            refused.claim.mode is Mode.LIMITED
        )  # then nothing is left that it could give back
        if not (later and request.woken and refused.waits) or is_limit or refused.is_held:
            return refused
        states = self._states([claim.key for claim in later])
        turns = [claim for claim in later if _has_turn(states[claim.key], claim.task)]
        if not (turns and self._waits_for_itself(refused.claim, moved=True, gives_way=True)):
            return refused
        if self._waits_alone(refused.claim):
            for claim in reversed(turns):
                if ends := self._give_turn_back(claim, keeps_rank=True):
                    refused = Refused(claim, ends)
                    self._take_back(given_back(request, (), refused), Outcome.OVER)
                    return refused
        return refused

    def _leave_for_itself(self, claim: Claim, refused: Refused) -> None:
        """Leave what was taken to the task itself, which waits elsewhere.

        Another delivery of it may wait behind this one: that must stay, and is woken. Of a message
        that the store keeps nobody could tell whose.
        """
        outcome = Outcome.OVER if claim.keep else Outcome.REPEAT
        self._take_back([kept_for_itself(claim, refused)], outcome)

    def _turns_behind(self, request: Request, refused: Refused) -> tuple[Refused, list[Claim]]:
        """The task must wait for a key before others at which it may have a turn: what comes of it,
        and the turns that it keeps.

        Whoever waits for an earlier key keeps nothing of the limits behind it, or two tasks might
        wait for each other. But the message goes with the turn, so it must be certain to wait at
        that key: not if another delivery of the task has it, which may be the one that has left the
        message where the turn is and is about to leave.
        """
        claims, claim, turn = request.claims, refused.claim, request.turn_at_limit
        behind = claims[claims.index(claim) + 1 :]
        comes_again = refused.waits or isinstance(refused.verdict, Busy)
        kept = [later for later in behind if comes_again and request.is_reserved(later)]
        limits = behind[: claims.index(turn) - claims.index(claim)] if turn in behind else ()
        limits = [later for later in limits if refused.waits and later.mode is Mode.LIMITED]
        if not (kept or limits):
            return refused, []
        if refused.waits and not self._waits_alone(claim):
            return (refused if turn is None else Refused(turn, Drop(Reason.WAITING))), []
        for later in reversed(behind):
            if later in kept:
                ends = self._keep_turn(later, refused)
            elif later in limits:
                ends = self._give_turn_back(later, keeps_rank=claim.mode is not Mode.SHARED)
            else:
                continue
            if ends is not None:
                return Refused(later, ends), []
        return refused, kept

    def _waits_alone(self, claim: Claim) -> bool:
        """Whether the store has the task's message there, and no delivery of it is at that key."""
        (state,) = self._backend.look([claim.key])
        if _has_turn(state, claim.task) or any(h.task == claim.task for h in state.holders):
            return False
        return self._backend.message(claim.key, claim.task) is not None

    def _waits_for_itself(self, claim: Claim, *, moved: bool, gives_way: bool = False) -> bool:
        """Whether nobody runs, or is about to, who could make room for *claim*.

        Each slot is kept for a task that waits, too, for a key of which the same is true. One that
        was woken there, and may yet give way, is about to run for all that do not give way. Where a
        task waits its turn says, unless it may have *moved* on since.
        """
        keys, seen = {claim.key}, set[str]()
        states = self._states(keys)
        while keys:
            seen |= keys
            turns = {key: turns_of_all_slots(states[key]) for key in keys}
            others = [t for of_key in turns.values() for t in of_key if t.task != claim.task]
            if not all(turns.values()) or any(t.parked and not gives_way for t in others):
                return False
            waiting = self._waiting(others, moved=moved)
            keys = set[str]().union(*waiting.values())
            states |= self._states(keys - states.keys())
            for task, at in waiting.items():
                # Where it has a turn it was woken, and is about to run.
                at.difference_update([key for key in at if _has_turn(states[key], task)])
            if not all(waiting.values()):
                return False
            keys = set[str]().union(*waiting.values()) - seen
        return True

    def _waiting(self, turns: Sequence[Grant], *, moved: bool) -> dict[str, set[str]]:
        """Where the task of each of *turns* waits: as that says; if it may have *moved*, where the
        store has its message, if it has one: there it waits or was woken.
        """
        says = {turn.task: {turn.elsewhere} - {""} for turn in turns}
        if not moved:
            return says
        waiting = {turn.task: set[str]() for turn in turns}
        for key, task in self._backend.parked({task_id_of(task) for task in waiting}):
            waiting.get(task, set()).add(key)
        return {task: keys or says[task] for task, keys in waiting.items()}

    def _states(self, keys: Collection[str]) -> dict[str, KeyState]:
        ordered = sorted(keys)
        return dict(zip(ordered, self._backend.look(ordered), strict=True)) if ordered else {}

    def _keep_turn(self, claim: Claim, refused: Refused) -> End | None:
        """The turn at *claim* is kept for the task, which waits elsewhere; nothing waits there."""
        return self._leave_turn(claim, kept_for_itself(claim, refused), Outcome.REPEAT)

    def _give_turn_back(self, claim: Claim, *, keeps_rank: bool) -> End | None:
        """Give back the turn at *claim*; nothing that waits there goes with it."""
        return self._leave_turn(claim, claim, Outcome.UNUSED if keeps_rank else Outcome.REPEAT)

    def _leave_turn(self, claim: Claim, left: Claim, outcome: Outcome) -> End | None:
        """Take the turn at *claim* and leave it as *left*.

        Returns the verdict if the turn has come for the task to end.
        """
        asked, left = (
            replace(c, wait=WaitMode.NOT, keep=False, begun=False) for c in (claim, left)
        )
        verdict = self._heard(self._backend.enter(asked))
        if isinstance(verdict, Run):
            self._heard(self._backend.leave(left, outcome))
        return verdict if isinstance(verdict, End) else None


def waits_for_a_limit(refused: Refused) -> bool:
    """Whether the task waits in the store for a key with a limit."""
    return refused.claim.mode is Mode.LIMITED and refused.waits


def _is_kept(request: Request, claim: Claim, refused: Refused) -> bool:
    """Whether *claim*, which was taken before, is left to the task itself."""
    comes_again = refused.waits or isinstance(refused.verdict, Busy)
    return waits_for_a_limit(refused) or (comes_again and request.is_reserved(claim))


def _has_turn(state: KeyState, task: str) -> bool:
    return any(turn.task == task for turn in state.grants)


def kept_for_itself(claim: Claim, refused: Refused) -> Claim:
    """Leaves its turn to its own task, which waits at the key that has *refused* it; a reader just
    leaves. It asks for nothing more.
    """
    left = replace(claim, wait=WaitMode.NOT, begun=False)
    if claim.mode is Mode.SHARED:
        return left
    if waits_for_a_limit(refused):
        patience = RESERVED_FOR
    elif refused.waits:
        patience = (claim.gives_up or WAITS_FOR) + EXPECTED_FOR
    else:
        patience = max(claim.patience, EXPECTED_FOR)
    return replace(left, successor=claim.task, elsewhere=refused.claim.key, patience=patience)


def given_back(request: Request, taken: Sequence[Claim], refused: Refused) -> list[Claim]:
    """The operations on the other claims: those that were *taken*, and turns of no use.

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
