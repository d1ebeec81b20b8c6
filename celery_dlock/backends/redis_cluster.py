"""The store on a Redis Cluster: all of a shard lies in one slot, so on one master.

What it does not give: exclusion over a failover. A replica that is promoted may not know the
holder, and lets a second one in; its token is larger as long as the clocks of the two servers
differ by less than the failover takes. ``dlock_wait_replicas`` makes the first unlikely. What must
not happen twice is guarded by the fence.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from celery_dlock.backends import redis_cluster_listing as listing
from celery_dlock.backends import redis_scripts as scripts
from celery_dlock.backends import redis_wire as wire
from celery_dlock.backends.base import BackendOptions, Guarantee, KeyPage, Swept, Trait, Wake
from celery_dlock.backends.redis import RedisBackend
from celery_dlock.backends.redis_map import MOVING, SILENCE, ClusterSession, session_of_cluster
from celery_dlock.backends.unreadable import KeysUnavailable
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, RenewVerdict, Unknown

logger = logging.getLogger("celery_dlock")


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
        with self._asked() as session:
            commands = [self._renewal([claims[n] for n in places]) for places in shards]
            answers = session.each(commands, self._copies)
            for places, answer in zip(shards, _answered(answers), strict=True):
                if answer is None:
                    continue
                told = wire.renew_verdicts(answer, len(places))
                for place, verdict in zip(places, told, strict=True):
                    verdicts[place] = verdict
        return verdicts

    def sweep(self, limit: int = 100) -> Swept:
        """Two round trips: what is due, and to reap it by scripts that name what they touch.

        A shard that refuses, as while its slot is moved, is left to a later sweep, and keeps no
        other waiting: this one goes on with what is due there.
        """
        with self._asked() as session:
            looks = [scripts.OVERDUE.on([index], [self._now(), limit]) for index in self._indexes]
            told = session.each(looks)
            found = {n: answer for n, answer in enumerate(_answered(told)) if answer is not None}
            left = {n: answer for n, answer in enumerate(told) if n not in found}
            next_in = {n: answer[1] for n, answer in found.items()}
            due = sorted((int(at), n, member) for n in found for at, member in found[n][0])
            wakes: list[Wake] = []
            while first := due[:limit]:
                keys = [wire.key_of(member) for _, _, member in first]
                answers = session.each([self._on(scripts.REAP_OVERDUE, key) for key in keys])
                for (_, n, _), key, answer in zip(first, keys, answers, strict=True):
                    if isinstance(answer, Exception):
                        left[n] = answer
                    else:
                        rows, next_in[n] = answer
                        wakes += wire.wakes(key, rows)
                        limit -= 1
                if any(isinstance(answer, SILENCE) for answer in answers):
                    break  # that took long enough
                due = [row for row in due[len(first) :] if row[1] not in left]
        self._say(left)
        later = [at for n, at in next_in.items() if at is not None and n not in left]
        return Swept(tuple(wakes), min(later) / SECOND if later else None)

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
        where = listing.Position.of(cursor)
        with self._asked() as session:
            assert isinstance(session, ClusterSession)
            return listing.held(session, self._indexes, self._prefix, where, limit)

    def _heads_of(self, keys: Sequence[str], parts: Sequence[Sequence[int]]) -> list[Any]:
        """Of keys in a slot that is moved nothing is told, and which those are the error says."""
        heads = [self._heads([keys[n] for n in part]) for part in parts]
        answers = self._session.each(heads)
        moving = [n for n, answer in enumerate(answers) if isinstance(answer, MOVING)]
        if moving:
            raise KeysUnavailable(
                self._session.said(answers[moving[0]]), {keys[n] for m in moving for n in parts[m]}
            )
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

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
