"""What a task that has to wait for one of its keys keeps of the others.

While it waits for a *limit* it keeps the exclusive keys and the limits before it, in the order of
``ask_order``: each as a turn that is reserved for this very task. So the few that fit through a
narrow limit are the only ones that stand before the wide one, and each is certain of both when its
turn comes there. Readers keep nothing: they would hold off a writer while they do nothing.

While it waits for a key *without* a limit it keeps its turn at those behind it that have none,
either, and nothing of a limit.

So whoever has something of a limit waits only for limits behind it, and whoever waits for a key
without one has at most keys of that kind that come later: nobody waits for himself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    End,
    Mode,
    OperatorHold,
    Park,
    Reason,
    Same,
    WaitMode,
    task_id_of,
)
from celery_dlock.errors import LockContended

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


def turn_at_a_limit(claims: Sequence[Claim], woken: str | None) -> Claim | None:
    """That of *claims* for which a task that waits in the store was woken, if it has a limit."""
    at_limits = (c for c in claims if c.limit > 1 and c.wait is WaitMode.QUEUE)
    return next((claim for claim in at_limits if claim.key == woken), None)


def waits_for_a_limit(refused: Refused) -> bool:
    """Whether the task waits in the store for a key with a limit."""
    return refused.claim.limit > 1 and refused.verdict in (Park(), Drop(Reason.WAITING))


def kept_for_itself(claim: Claim) -> Claim:
    """Leaves its turn to its own task, which comes again; a reader just leaves.

    It asks for nothing more.
    """
    left = replace(claim, wait=WaitMode.NOT, begun=False)
    if claim.mode is Mode.SHARED:
        return left
    return replace(left, successor=claim.task, patience=RESERVED_FOR)


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
            last = next((c.order for c in claims if c.key == woken), refused.claim.order)
            return [*taken, *(c for c in claims if refused.claim.order < c.order <= last)]
