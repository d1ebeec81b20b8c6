"""The store on a Redis Cluster: all of a shard lies in one slot, so on one master.

What it does not give: exclusion over a failover. A replica that is promoted may not know the
holder, and lets a second one in; its token is larger as long as the clocks of the two servers
differ by less than the failover takes. ``dlock_wait_replicas`` makes the first unlikely. What must
not happen twice is guarded by the fence.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, RenewVerdict, Unknown
from celery_dlock.stores.base import BackendOptions, Guarantee, KeyPage, Swept, Trait, Wake
from celery_dlock.stores.redis import scripts, wire
from celery_dlock.stores.redis.client import RedisSession, checked
from celery_dlock.stores.redis.cluster_session import (
    MOVING,
    SILENCE,
    ClusterSession,
    session_of_cluster,
)
from celery_dlock.stores.redis.listing import swapped, walk, with_state
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.unreadable import KeysUnavailable

logger = logging.getLogger("celery_dlock")

_CURSOR = re.compile(r"c([0-9]{1,20}):([0-9a-f]{1,16}):([0-9a-f]{1,16}):(.{1,300})")


class RedisClusterBackend(RedisBackend):
    """All keys of one cluster. What concerns many shards asks every master at the same time.

    A master that does not answer keeps only its own shards waiting: the leases that others have
    are renewed, and their keys are swept.
    """

    traits: ClassVar[frozenset[Trait]] = RedisBackend.traits - {Trait.MONOTONE_FENCING}
    guarantee: ClassVar[Guarantee] = Guarantee.BEST_EFFORT

    _left: frozenset[int] = frozenset()

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``redis+cluster://[[user]:password@]host[:port][,host[:port]…]``; a few are enough."""
        return cls(lambda: session_of_cluster(url, options.driver), options)

    def _names(self, key: str, task: str = "") -> list[str]:
        """All of them: a cluster refuses while it moves any of them to another master."""
        return wire.touched(self._prefix, key, task)

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        shards = self._together([claim.key for claim in claims])
        verdicts: list[RenewVerdict] = [Unknown()] * len(claims)
        with self._session() as session:
            commands = [self._renewal([claims[n] for n in places]) for places in shards]
            answers = session.each(commands, self._copies)
            for places, answer in zip(shards, _answered(answers), strict=True):
                if answer is None:
                    continue
                replies = wire.renew_verdicts(answer, [claims[n] for n in places])
                for place, verdict in zip(places, replies, strict=True):
                    verdicts[place] = verdict
        return verdicts

    def sweep(self, limit: int = 100) -> Swept:
        """Two round trips: what is due, and to reap it by scripts that name what they touch; one
        more where a shard has much that is due.

        A shard that refuses, as while its slot is moved, is left to a later sweep, and keeps no
        other waiting: this one goes on with what is due there.
        """
        with self._session() as session:
            replies = self._overdue(session, limit)
            overdue = {
                n: answer for n, answer in enumerate(_answered(replies)) if answer is not None
            }
            left = {n: answer for n, answer in enumerate(replies) if n not in overdue}
            next_in = {n: answer[1] for n, answer in overdue.items()}
            due = self._named(session, {n: answer[0] for n, answer in overdue.items()})
            wakes: list[Wake] = []
            while first := due[:limit]:
                keys = [key for _, _, key in first]
                answers = session.each([self._on(scripts.REAP_OVERDUE, key) for key in keys])
                for (_, n, _), key, answer in zip(first, keys, answers, strict=True):
                    if isinstance(answer, Exception):
                        left[n] = answer
                    else:
                        rows, next_in[n] = answer
                        wakes += wire.wakes_of(key, rows)
                        limit -= 1
                if any(isinstance(answer, SILENCE) for answer in answers):
                    break  # that took long enough
                due = [row for row in due[len(first) :] if row[1] not in left]
        self._say(left)
        later = [at for n, at in next_in.items() if at is not None and n not in left]
        return Swept(tuple(wakes), min(later) / SECOND if later else None)

    def _overdue(self, session: RedisSession, limit: int) -> list[Any]:
        """What is due in each shard: a fair part, and *limit* where that may not have been all."""

        def look(shards: Sequence[int], size: int) -> dict[int, Any]:
            indexes = [self._indexes[n] for n in shards]
            looks = [scripts.OVERDUE.on([index], [self._now(), size]) for index in indexes]
            return dict(zip(shards, session.each(looks), strict=True))

        part = min(limit, -(-2 * limit // wire.SHARDS))
        replies = look(range(wire.SHARDS), part)
        rows = {n: a[0] for n, a in replies.items() if not isinstance(a, Exception)}
        instants = sorted(int(at) for shard in rows.values() for at, _ in shard)
        last = instants[limit - 1] if len(instants) >= limit else math.inf
        full = [n for n, shard in rows.items() if len(shard) == part and int(shard[-1][0]) < last]
        if full and part < limit:
            replies |= look(full, limit)
        return [replies[n] for n in range(wire.SHARDS)]

    def _named(
        self, session: RedisSession, listed: Mapping[int, Sequence[Any]]
    ) -> list[tuple[int, int, str]]:
        """The keys that are due, the most overdue first; what is no name of one is taken off."""
        rows = [(int(at), n, member) for n, members in listed.items() for at, member in members]
        named = [(at, n, wire.key_of(member), member) for at, n, member in rows]
        strangers = [
            ("ZREM", self._indexes[n], member) for _, n, key, member in named if key is None
        ]
        if strangers:
            session.each(strangers)
        return sorted((at, n, key) for at, n, key, _ in named if key is not None)

    def _say(self, left: Mapping[int, Exception]) -> None:
        """Which shards were not swept, once; that may last for as long as a slot is on its way."""
        if left.keys() - self._left:
            what = ", ".join(sorted({type(error).__name__ for error in left.values()}))
            logger.warning("not swept, %d of %d shards: %s", len(left), wire.SHARDS, what)
        self._left = frozenset(left)

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        """Master by master; one that does not answer holds the list up, and a later try goes on.

        With *waiting* a key may be left out whose slot has moved to another master meanwhile.
        """
        if waiting:
            return super().keys(cursor, limit, waiting=True)
        position = Position.of(cursor)
        with self._session() as session:
            assert isinstance(session, ClusterSession)
            return _held(session, self._indexes, self._prefix, position, limit)

    def _swap_names(self, session: RedisSession, limit: int) -> Iterator[list[str]]:
        assert isinstance(session, ClusterSession)
        for master in sorted(set(session.owners(self._indexes))):
            yield from swapped(partial(session.ask, master), self._prefix, limit)

    def _heads_of(self, keys: Sequence[str], parts: Sequence[Sequence[int]]) -> list[Any]:
        """Of keys in a slot that is moved nothing is told, and which those are the error says."""
        heads = [self._heads([keys[n] for n in part]) for part in parts]
        answers = self._session().each(heads)
        moving = [n for n, answer in enumerate(answers) if isinstance(answer, MOVING)]
        if moving:
            raise KeysUnavailable(
                self._session().describe(answers[moving[0]]),
                {keys[n] for m in moving for n in parts[m]},
            )
        return checked(answers)

    def _together(self, keys: Sequence[str]) -> list[Sequence[int]]:
        shards: dict[int, list[int]] = {}
        for place, key in enumerate(keys):
            shards.setdefault(wire.shard_of(key), []).append(place)
        return list(shards.values())


def _answered(answers: Sequence[Any]) -> list[Any]:
    """The *answers*, ``None`` for each that is missing.

    Without any there is no store: the first error is raised.
    """
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if errors and len(errors) == len(answers):
        raise errors[0]
    return [None if isinstance(answer, Exception) else answer for answer in answers]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a list of keys is that goes from master to master until all shards are walked through.

    It says which shards are done, at which master the walk is, and which shards that had when its
    walk began; of shards each is a bit. Those are done with it only if it has them still: a shard
    that moved meanwhile is walked through at the master to which it went. So none is left out, and
    some are told twice.
    """

    at: int = 0
    done: int = 0
    begun: int = 0
    master: str = ""

    @classmethod
    def of(cls, cursor: str) -> Position:
        """Raises :exc:`ValueError` for what no page has given."""
        if not cursor:
            return cls()
        match = _CURSOR.fullmatch(cursor)
        if match is None or int(match[1]) >= 2**64:
            raise ValueError("this is not a cursor of a list of keys")
        return cls(int(match[1]), int(match[2], 16), int(match[3], 16), match[4])

    def __str__(self) -> str:
        return f"c{self.at}:{self.done:x}:{self.begun:x}:{self.master}"


def _held(
    session: ClusterSession, shards: Sequence[str], prefix: str, position: Position, limit: int
) -> KeyPage:
    """Keys that have a state; *shards* is a name of each shard."""
    owners = session.owners(shards)
    if position.master not in owners or not position.at:
        position = _begun(owners, position)
    if not position.master:
        return KeyPage((), None)
    step = with_state(lambda command: session.ask(position.master, command), prefix)
    keys, at = walk(step, prefix, position.at, limit)
    if at:
        return KeyPage(tuple(keys), str(replace(position, at=at)))
    done = position.done | position.begun & _of(position.master, session.owners(shards))
    is_last = done == 2 ** len(shards) - 1
    return KeyPage(
        tuple(keys), None if is_last else str(Position(done=done, master=position.master))
    )


def _begun(owners: Sequence[str], position: Position) -> Position:
    """At the master of the first shard that is not done; at none if all are."""
    left = [owner for n, owner in enumerate(owners) if not position.done >> n & 1]
    master = left[0] if left else ""
    return Position(0, position.done, _of(master, owners), master)


def _of(master: str, owners: Sequence[str]) -> int:
    return sum(1 << n for n, owner in enumerate(owners) if owner == master)
