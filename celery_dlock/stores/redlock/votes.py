"""Who has a majority, which slot can still get one, and which token comes next: no I/O here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from celery_dlock.core.backoff import CHANCE
from celery_dlock.core.state import Claim, Holder, Mode
from celery_dlock.stores.redlock.wire import Look, is_of

Choose = Callable[[list[int]], int]


def majority_of(nodes: int) -> int:
    return nodes // 2 + 1


def drift(duration: int) -> int:
    """What clocks of different speed may make of *duration*: the Redlock article's allowance."""
    return duration // 100 + 2_000


def excludes(holder: Holder, claim: Claim, slot: int) -> bool:
    """Whether a node that knows *holder* refuses *claim*; the same rule as in ``redlock_take.lua``.

    Of each slot there is one, and none beyond the limit of *claim*: the rule looks at two claims
    only, which is what the node can do that two majorities have in common.
    """
    if is_of(holder, claim):
        return False
    if holder.mode is not claim.mode:
        return True
    return claim.mode is not Mode.SHARED and (holder.slot == slot or holder.slot >= claim.limit)


def slot_for(
    claim: Claim,
    looks: Collection[Look],
    nodes: int,
    wanted: int | None,
    choose: Choose = CHANCE.choice,
) -> int | None:
    """The slot to ask for; ``None`` when no majority of *nodes* can give any.

    That is the one it has, else the *wanted* one, else anyone: who comes at the same time without
    a queue to tell them apart had better not all ask for the first.
    """

    def can_win(slot: int) -> bool:
        against = sum(
            not look.votes or any(excludes(h, claim, slot) for h in look.holders) for look in looks
        )
        return nodes - against >= majority_of(nodes)

    own = (held.slot for look in looks if (held := look.of(claim)))
    first = [*own, *([] if wanted is None else [wanted])]
    slots = range(1 if claim.mode is Mode.SHARED else claim.limit)
    for slot in first:
        if can_win(slot):
            return slot
    possible = [slot for slot in slots if can_win(slot)]
    return choose(possible) if possible else None


def token_for(claim: Claim, slot: int, looks: Collection[Look]) -> int:
    """The token it has in *slot* already, or one larger than any that a majority has heard of.

    No smaller than the time by which half of the nodes go, so that it grows even when all of them
    have forgotten. Claims in different slots get different ones, also at the same moment.
    """
    if claim.mode is Mode.SHARED:
        return 0
    own = [held.token for look in looks if (held := look.of(claim)) and held.slot == slot]
    if own:
        return max(own)
    least = max(
        max(look.counter for look in looks) + 1, statistics.median_low(look.now for look in looks)
    )
    return least + (slot - least) % claim.limit


def silence(looks: Iterable[Look]) -> int:
    """For how long a node that forgot what *looks* know is not to vote."""
    longest = max((look.longest for look in looks), default=0)
    return longest + drift(longest) if longest else 0


def as_the_nodes_know(holder: Holder, of_nodes: Iterable[Holder]) -> Holder:
    """*holder*, whom the queue knows, with the slot and the token that it was given."""
    own = [other for other in of_nodes if other.owner == holder.owner]
    if not own:
        return holder
    latest = max(own, key=lambda other: other.token)
    return replace(holder, slot=latest.slot, token=latest.token)


def unknown_to_the_queue(
    holders: Collection[Holder], of_nodes: Sequence[Collection[Holder]], nodes: int
) -> tuple[Holder, ...]:
    """Who is not among *holders* and may have a majority of *nodes*, of which some have answered.

    The queue has not heard of a claim that came while it was unavailable, and may have forgotten
    others.
    """
    votes: dict[str, list[Holder]] = {}
    for of_node in of_nodes:
        for holder in of_node:
            votes.setdefault(holder.owner, []).append(holder)
    least = majority_of(nodes) - (nodes - len(of_nodes))
    others = votes.keys() - {holder.owner for holder in holders}
    return tuple(
        max(votes[owner], key=lambda holder: holder.token)
        for owner in sorted(others)
        if len(votes[owner]) >= least
    )


def decided(yes: int, pending: int, nodes: int) -> bool:
    """Whether the replies that are pending can change nothing any more."""
    majority = majority_of(nodes)
    return yes >= majority or yes + pending < majority


def held_until(ends: Collection[int], nodes: int) -> int:
    """Until when a majority of *nodes* holds, of which some hold until *ends*."""
    latest_first: list[int] = sorted(ends, reverse=True)
    return latest_first[majority_of(nodes) - 1]
