"""The store on Redis: each operation is one script, one round trip, applied whole or not at all.

What it does not give: safety against loss of data. A server that restarts without its last writes,
or a replica promoted too early, does not know the holder and lets a second one in; its token is
larger all the same as long as the server's clock does not step back over the outage. What must
not happen twice is guarded by the fence in the resource, with this store as with any other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
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

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        with self._answers() as session:
            client: Any = session.client  # its types speak of decoded replies too
            pipeline = client.pipeline(transaction=False)
            for index in self._indexes:  # a key with a message is always due some time
                pipeline.zrange(index, 0, -1)
            keys = [wire.key_of(member) for members in pipeline.execute() for member in members]
            found = ((key, task) for key in keys for task in self._parked_for(session, key))
            return [(key, task) for key, task in found if task_id_of(task) in task_ids]

    def _parked_for(self, session: Session, key: str) -> set[str]:
        """The tasks with a message for *key*; a long queue is told page by page."""
        keys, tasks, cursor = wire.touched(self._prefix, key), set[str](), b"0"
        while True:
            cursor, page = session.parked(keys, [self._now(), cursor])
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
