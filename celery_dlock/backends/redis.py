"""The store on Redis: each operation is one script, one round trip, applied whole or not at all.

What it does not give: safety against loss of data. A server that restarts without its last writes,
or a replica promoted too early, does not know the holder and lets a second one in; its token is
larger all the same as long as the server's clock does not step back over the outage. What must
not happen twice is guarded by the fence in the resource, with this store as with any other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Self

from celery_dlock.backends import redis_listing as listing
from celery_dlock.backends import redis_scripts as scripts
from celery_dlock.backends import redis_wire as wire
from celery_dlock.backends.base import (
    BackendOptions,
    Burial,
    Guarantee,
    KeyPage,
    LockBackend,
    Reply,
    Swept,
    Trait,
    by_age,
)
from celery_dlock.backends.redis_client import Session, TooFewCopies
from celery_dlock.backends.redis_scripts import Command
from celery_dlock.backends.redis_url import session_of
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import (
    Cause,
    Claim,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Outcome,
    RenewVerdict,
    task_id_of,
)

#: So many keys are looked at by one script.
LOOK = 100


class RedisBackend(LockBackend):
    """All keys of one Redis server, version 6.2 or later."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.MULTI_PROCESS, Trait.MULTI_HOST, Trait.LEASE_PER_TASK, Trait.MONOTONE_FENCING}
    )
    guarantee: ClassVar[Guarantee] = Guarantee.MONOTONE
    largest_message: ClassVar[int] = 256 * 2**20  # half of what a server takes by default
    replicates: ClassVar[bool] = True

    def __init__(self, connect: Callable[[], Session], options: BackendOptions) -> None:
        self._connect = connect
        self._prefix = options.prefix
        self._indexes = wire.indexes(options.prefix)
        self._clock = options.clock
        self._copies = options.copies
        self._session = connect()

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``redis://[[user]:password@]host[:port][/db]``, ``rediss://…`` the same with TLS, or
        ``redis+unix:///path/to.sock[?db=n]``; the query takes redis-py's connection options.
        """
        return cls(lambda: session_of(url, options.driver), options)

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        with self._asked() as session:
            keys = self._names(claim.key, claim.task)
            args = [self._now(), *wire.claim_arguments(claim, message)]
            command = scripts.ENTER.on(keys, args)
            if self._copies is None:
                return wire.entered(claim.key, session.run(command))
            return wire.entered(claim.key, self._copied(session, claim, command))

    def _copied(self, session: Session, claim: Claim, command: Command) -> Any:
        """The answer to *command*, by which *claim* enters, if it has been copied in time.

        Otherwise the key is given back: a replica that is promoted might not know of the hold.
        """
        (answer,) = session.each([command], self._copies)
        if isinstance(answer, TooFewCopies):
            # What waits here may be the only message: its own, or that of another delivery.
            self.leave(claim, Outcome.UNUSED if claim.has_message else Outcome.OVER)
        return _sound(answer)

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        with self._asked() as session:
            keys = self._names(claim.key, claim.task)
            args = [self._now(), *wire.claim_arguments(claim, message)]
            args += [outcome.value, *([claim.successor] if claim.successor else [])]
            command = scripts.LEAVE.on(keys, args)
            return wire.left(claim.key, session.run(command))

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        if not claims:
            return []
        with self._asked() as session:
            (answer,) = map(_sound, session.each([self._renewal(claims)], self._copies))
            return wire.renew_verdicts(answer, len(claims))

    def _renewal(self, claims: Sequence[Claim]) -> Command:
        keys = [wire.state_of(self._prefix, claim.key) for claim in claims]
        return scripts.RENEW.on(keys, [self._now(), *wire.renew_arguments(claims)])

    def now(self) -> int:
        if self._clock is not None:
            return self._clock()
        with self._asked() as session:
            seconds, microseconds = session.run(scripts.TIME.on(self._indexes[:1], []))
            return int(seconds) * SECOND + int(microseconds)

    def reap(self, key: str) -> Reply[None]:
        with self._asked() as session:
            _, wakes = session.run(self._on(scripts.REAP, key))
            return Reply(None, wire.wakes(key, wakes))

    def sweep(self, limit: int = 100) -> Swept:
        with self._asked() as session:
            return wire.swept(session.run(scripts.SWEEP.on(self._indexes, [self._now(), limit])))

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        with self._asked() as session:
            # A key with a message is always due some time.
            indexed = session.each([("ZRANGE", index, 0, -1) for index in self._indexes])
            keys = [wire.key_of(member) for members in map(_sound, indexed) for member in members]
            found = ((key, task) for key in keys for task in self._parked_for(session, key))
            return [(key, task) for key, task in found if task_id_of(task) in task_ids]

    def _parked_for(self, session: Session, key: str) -> set[str]:
        """The tasks with a message for *key*; a long queue is told page by page."""
        tasks, cursor = set[str](), b"0"
        while True:
            cursor, page = session.run(self._on(scripts.PARKED, key, cursor))
            tasks.update(task.decode() for task in page)
            if cursor == b"0":
                return tasks

    def cancel(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep(key, task, "cancel")

    def bury(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        return self._upkeep(key, task, "bury", cause.value)

    def hand_back(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep(key, task, "hand_back")

    def dead(self, limit: int = 100) -> list[Burial]:
        with self._asked() as session:
            graves = session.each([("HGETALL", grave) for grave in wire.graves(self._prefix)])
            found = [burial for grave in map(_sound, graves) for burial in wire.burials(grave)]
        return sorted(found, key=by_age)[:limit]

    def replay(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep(key, task, "replay")

    def _upkeep(self, key: str, task: str, what: str, why: str = "") -> Reply[bool]:
        with self._asked() as session:
            keys = self._names(key, task)
            command = scripts.UPKEEP.on(keys, [self._now(), task, what, why])
            verdict, wakes = session.run(command)
            return Reply(bool(verdict), wire.wakes(key, wakes))

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        """With ``dlock_wait_replicas`` they have come to so many replicas, too, like a hold."""
        with self._asked() as session:
            beside = wire.notes_of(self._prefix, key)
            command = scripts.NOTE.on([beside], wire.note_arguments(token, notes))
            (answer,) = map(_sound, session.each([command], self._copies))
            return bool(answer)

    def notes(self, key: str) -> dict[str, bytes]:
        with self._asked() as session:
            (fields,) = map(_sound, session.each([("HGETALL", wire.notes_of(self._prefix, key))]))
            return wire.notes(fields)

    def peek(self, key: str) -> KeyState:
        """The whole state of *key*, lapsed places included; costs what the queue is long."""
        with self._asked() as session:
            return wire.key_state(session.run(self._on(scripts.PEEK, key)))

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        """For a page ten thousand names are looked at, so it may be empty where there are many.

        A cursor is of one server: over its restart, or a failover, a key may be left out.
        """
        at = listing.position(cursor, waiting=waiting)
        with self._asked() as session:
            if waiting:
                return listing.with_messages(self._each, self._indexes, at, limit)
            return listing.held(session.run, self._prefix, at[0], limit)

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """A hundred keys a script, all in one flight: others get their turn in between."""
        states: dict[int, KeyState] = {}
        with self._asked():
            parts = [part for some in self._together(keys) for part in _parts(some)]
            for part, answer in zip(parts, self._heads_of(keys, parts), strict=True):
                states |= zip(part, map(wire.key_state, answer), strict=True)
        return [states[n] for n in range(len(keys))]

    def _together(self, keys: Sequence[str]) -> list[Sequence[int]]:
        """The places of keys that one script can look at."""
        return [range(len(keys))]

    def _heads_of(self, keys: Sequence[str], parts: Sequence[Sequence[int]]) -> list[Any]:
        return self._each([self._heads([keys[n] for n in part]) for part in parts])

    def _heads(self, keys: Sequence[str]) -> Command:
        names = [name for key in keys for name in wire.touched(self._prefix, key)[:2]]
        return scripts.HEADS.on(names, [self._now()])

    def _each(self, commands: Sequence[Command]) -> list[Any]:
        """What is answered to *commands*, if all are answered."""
        return [_sound(answer) for answer in self._session.each(commands)]

    def close(self) -> None:
        with self._asked() as session:
            session.close()

    def _asked(self) -> Session:
        """The session of this process; errors within are translated."""
        if self._session.pid != os.getpid():
            self._session = self._connect()
        return self._session

    def _on(self, script: scripts.Script, key: str, *args: Any) -> Command:
        return script.on(self._names(key), [self._now(), *args])

    def _names(self, key: str, task: str = "") -> list[str]:
        """What a script is told of *key*: it makes all other names from the first."""
        return [wire.state_of(self._prefix, key)]

    def _now(self) -> Any:
        """Empty for the server's own time, which is what counts outside tests."""
        return b"" if self._clock is None else self._clock()


def _parts(places: Sequence[int]) -> list[Sequence[int]]:
    return [places[start : start + LOOK] for start in range(0, len(places), LOOK)]


def _sound(answer: Any) -> Any:
    """*answer*, unless it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer
