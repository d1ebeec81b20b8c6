"""The store on Redis: each operation is one script, one round trip, applied whole or not at all.

What it does not give: safety against loss of data. A server that restarts without its last writes,
or a replica promoted too early, does not know the holder and lets a second one in; its token is
larger all the same as long as the server's clock does not step back over the outage. What must
not happen twice is guarded by the fence in the resource, with this store as with any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import redis

from celery_dlock.backends import redis_wire as wire
from celery_dlock.backends.base import (
    BackendOptions,
    Burial,
    Guarantee,
    LockBackend,
    Reply,
    Swept,
    Trait,
    by_age,
)
from celery_dlock.backends.redis_client import Session, client_of
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


class RedisBackend(LockBackend):
    """All keys of one Redis server, version 6.2 or later."""

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {Trait.MULTI_PROCESS, Trait.MULTI_HOST, Trait.LEASE_PER_TASK, Trait.MONOTONE_FENCING}
    )
    guarantee: ClassVar[Guarantee] = Guarantee.MONOTONE
    largest_message: ClassVar[int] = 256 * 2**20  # half of what a server takes by default

    def __init__(self, connect: Callable[[], redis.Redis], options: BackendOptions) -> None:
        self._connect = connect
        self._prefix = options.prefix
        self._indexes = wire.indexes(options.prefix)
        self._clock = options.clock
        self._session = Session.over(connect())

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        """``redis://[[user]:password@]host[:port][/db]``, ``rediss://…`` the same with TLS, or
        ``redis+unix:///path/to.sock[?db=n]``; the query takes redis-py's connection options.
        """
        return cls(lambda: client_of(url, options.driver), options)

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        with self._answers() as scripts:
            verdict, wakes = scripts.enter(*self._claim(claim, message))
            return Reply(wire.enter_verdict(verdict), wire.wakes(claim.key, wakes))

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        with self._answers() as scripts:
            verdict, wakes = scripts.leave(*self._claim(claim, message, outcome.value))
            return Reply(wire.leave_verdict(verdict), wire.wakes(claim.key, wakes))

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        if not claims:
            return []
        keys = [wire.touched(self._prefix, claim.key)[0] for claim in claims]
        args = [self._now()]
        for claim in claims:
            args += [claim.task, claim.nonce, claim.ttl, claim.lock_delay]
        with self._answers() as scripts:
            return wire.renew_verdicts(scripts.renew(keys, args), len(claims))

    def reap(self, key: str) -> Reply[None]:
        with self._answers() as scripts:
            _, wakes = scripts.reap(wire.touched(self._prefix, key), [self._now()])
            return Reply(None, wire.wakes(key, wakes))

    def sweep(self, limit: int = 100) -> Swept:
        with self._answers() as scripts:
            return wire.swept(scripts.sweep(self._indexes, [self._now(), limit]))

    def parked(self, task_id: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        with self._answers() as session:
            client: Any = session.client  # its types speak of decoded replies too
            for index in self._indexes:
                for member in client.zrange(index, 0, -1):
                    found += self._parked_for(session, wire.key_of(member), task_id)
        return found

    def _parked_for(self, session: Session, key: str, task_id: str) -> list[tuple[str, str]]:
        """A look at all who wait for *key*, and a second one at whether it is with a message."""
        pattern = re.sub(r"([\\*?\[\]^-])", r"\\\1", task_id) + ":*"
        keys = wire.touched(self._prefix, key)
        client: Any = session.client
        scanned = client.hscan_iter(keys[2], pattern, 1000)
        named = {task for task, _ in scanned if task_id_of(task.decode()) == task_id}
        if not named:
            return []
        return [(key, task.decode()) for task in session.parked(keys, [self._now(), *named])]

    def cancel(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep(key, task, "cancel")

    def bury(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        return self._upkeep(key, task, "bury", cause.value)

    def hand_back(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep(key, task, "hand_back")

    def dead(self, limit: int = 100) -> list[Burial]:
        with self._answers() as session:
            client: Any = session.client
            graves = (client.hgetall(grave) for grave in wire.graves(self._prefix))
            found = [burial for grave in graves for burial in wire.burials(grave)]
        return sorted(found, key=by_age)[:limit]

    def replay(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep(key, task, "replay")

    def _upkeep(self, key: str, task: str, what: str, why: str = "") -> Reply[bool]:
        with self._answers() as scripts:
            keys = wire.touched(self._prefix, key, task)
            verdict, wakes = scripts.upkeep(keys, [self._now(), task, what, why])
            return Reply(bool(verdict), wire.wakes(key, wakes))

    def peek(self, key: str) -> KeyState:
        """The whole state of *key*, lapsed places included; costs what the queue is long."""
        with self._answers() as scripts:
            return wire.key_state(scripts.peek(wire.touched(self._prefix, key), [self._now()]))

    def close(self) -> None:
        with self._answers() as session:
            session.close()

    @contextmanager
    def _answers(self) -> Iterator[Session]:
        """The session of this process; errors within are translated."""
        if self._session.pid != os.getpid():
            self._session = Session.over(self._connect())
        with self._session.answers() as session:
            yield session

    def _claim(
        self, claim: Claim, message: bytes | None, *more: str
    ) -> tuple[list[str], list[Any]]:
        keys = wire.touched(self._prefix, claim.key, claim.task)
        return keys, [self._now(), *wire.claim_arguments(claim, message), *more]

    def _now(self) -> Any:
        """Empty for the server's own time, which is what counts outside tests."""
        return "" if self._clock is None else self._clock()
