"""The commits of the common case, without the rules: a free key is taken, and given back alone.

They are what the rules would come to, and a test compares them; but most of the time that such an
operation takes here, the rules would be looking for what cannot be there.
"""

from __future__ import annotations

from celery_dlock.backends.record import encode_alone
from celery_dlock.backends.rows import Commit, Kind, Name, Row
from celery_dlock.core.state import Claim, Mode, Outcome, Wait


def taken(claim: Claim, row: Name, now: int) -> Commit | None:
    """What *claim*, whose row is *row*, commits to a key that nobody uses.

    ``None`` unless it is to run at once, and to leave no more.
    """
    if claim.keep or claim.wait is Wait.ENQUEUE:
        return None
    return Commit(
        _guard(claim),
        None,
        encode_alone(claim, int(claim.mode is Mode.EXCLUSIVE), now),
        absent={_done(claim)},
        held=(row, b""),
        lease=claim.ttl,
    )


def left(claim: Claim, row: Name, outcome: Outcome, guard: Row, now: int) -> Commit | None:
    """What *claim* commits, which is alone on its key with *row* and *guard*, if nothing stays."""
    if claim.successor or outcome not in (Outcome.DONE, Outcome.OVER):
        return None
    commit = Commit(_guard(claim), guard, None, delete={row})
    if outcome is Outcome.DONE and claim.done_ttl:
        until = str(now + claim.done_ttl).encode()
        commit.remember = {_done(claim): (until, claim.done_ttl)}
    else:
        commit.absent = {_done(claim)}
    return commit


def carried(claim: Claim, outcome: Outcome) -> bool:
    """Whether the task is done, after :func:`left`."""
    return outcome is Outcome.DONE and claim.done_ttl > 0


def _guard(claim: Claim) -> Name:
    return Name(Kind.GUARD, claim.key)


def _done(claim: Claim) -> Name:
    return Name(Kind.DONE, claim.key, claim.task)
