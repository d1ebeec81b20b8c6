"""The keys of a cluster: one master after the other, until all shards have been walked through.

A cursor says which shards are done, at which master the walk is, and which shards it had when its
walk began. Those are done with it only if it has them still: a shard that moved meanwhile is walked
through at the master to which it went. So none is left out, and some are told twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from celery_dlock.backends.base import KeyPage
from celery_dlock.backends.redis_listing import walk, with_state
from celery_dlock.backends.redis_map import ClusterSession

_CURSOR = re.compile(r"c([0-9]{1,20}):([0-9a-f]{1,16}):([0-9a-f]{1,16}):(.{1,300})")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a walk is; of shards each is a bit."""

    at: int = 0
    done: int = 0
    begun: int = 0
    master: str = ""

    @classmethod
    def of(cls, cursor: str) -> Position:
        """Raises :exc:`ValueError` for what no page has given."""
        if not cursor:
            return cls()
        found = _CURSOR.fullmatch(cursor)
        if found is None or int(found[1]) >= 2**64:
            raise ValueError("this cursor is of no list of keys")
        return cls(int(found[1]), int(found[2], 16), int(found[3], 16), found[4])

    def __str__(self) -> str:
        return f"c{self.at}:{self.done:x}:{self.begun:x}:{self.master}"


def held(
    session: ClusterSession, shards: Sequence[str], prefix: str, where: Position, limit: int
) -> KeyPage:
    """Keys that have a state; *shards* is a name of each shard."""
    owners = session.owners(shards)
    if where.master not in owners or not where.at:
        where = _begun(owners, where)
    if not where.master:
        return KeyPage((), None)
    step = with_state(lambda command: session.ask(where.master, command), prefix)
    keys, at = walk(step, prefix, where.at, limit)
    if at:
        return KeyPage(tuple(keys), str(replace(where, at=at)))
    done = where.done | where.begun & _of(where.master, session.owners(shards))
    is_last = done == 2 ** len(shards) - 1
    return KeyPage(tuple(keys), None if is_last else str(Position(done=done, master=where.master)))


def _begun(owners: Sequence[str], where: Position) -> Position:
    """At the master of the first shard that is not done; at none if all are."""
    left = [owner for n, owner in enumerate(owners) if not where.done >> n & 1]
    master = left[0] if left else ""
    return Position(0, where.done, _of(master, owners), master)


def _of(master: str, owners: Sequence[str]) -> int:
    return sum(1 << n for n, owner in enumerate(owners) if owner == master)
