"""The store in a file: all processes of one machine, no server.

What it does not give: anything to a second machine, and a network share is one (SQLite's locks do
not hold there). One process writes at a time, each write waits for the disk, and under gevent and
eventlet the whole process waits with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from celery_dlock.backends.base import (
    BackendOptions,
    Burial,
    Guarantee,
    KeyPage,
    LockBackend,
    Reply,
    Swept,
    Trait,
    Wake,
)
from celery_dlock.backends.listing import first_of
from celery_dlock.backends.memory import wall_clock
from celery_dlock.backends.sqlite_file import DatabaseFile
from celery_dlock.backends.sqlite_key import (
    KeyRows,
    UnreadableKey,
    dead_messages,
    due_keys,
    next_due,
    next_token,
    parked_tasks,
    spend_token,
)
from celery_dlock.backends.sqlite_listing import list_keys
from celery_dlock.backends.sqlite_notes import read_notes, write_notes
from celery_dlock.core import machine, upkeep
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import (
    Cause,
    Claim,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Outcome,
    RenewVerdict,
    Run,
)
from celery_dlock.core.step import Step
from celery_dlock.core.turns import CALL_AGAIN_LAST
from celery_dlock.errors import ConfigurationError

logger = logging.getLogger("celery_dlock")

V = TypeVar("V")

BUSY_TIMEOUT = 5.0

#: So many keys are looked at in one transaction.
LOOK = 100


class SqliteBackend(LockBackend):
    """Locks in an SQLite file of their own.

    ``sqlite:///file.db`` is relative to the working directory, ``sqlite:////var/lib/file.db`` is
    absolute. The driver option ``timeout`` is how many seconds to wait for another process.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset(
        {
            Trait.MULTI_PROCESS,
            Trait.DURABLE,
            Trait.LEASE_PER_TASK,
            Trait.MONOTONE_FENCING,
            Trait.STRICT_FENCING,
        }
    )
    guarantee: ClassVar[Guarantee] = Guarantee.STRICT
    largest_message: ClassVar[int] = 500_000_000  # half of what SQLite takes by default

    def __init__(self, path: Path, options: BackendOptions) -> None:
        if path.is_dir():
            raise ConfigurationError(f"{path} is a folder; name a file in it")
        if not path.parent.is_dir():
            raise ConfigurationError(f"the folder {path.parent} does not exist; {path} needs it")
        self._file = DatabaseFile(path, _timeout(options))
        self._prefix = options.prefix
        self._now = options.clock or wall_clock

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        scheme, _, rest = url.partition("://")
        host, slash, path = rest.partition("/")
        if scheme != "sqlite" or host or "?" in path:
            raise ConfigurationError(  # not quoted: what stands there may be a password
                "the URL is not of the form sqlite:///relative.db or sqlite:////absolute/path.db; "
                "options go to dlock_backend_options"
            )
        if not slash or path in ("", ":memory:"):
            raise ConfigurationError(
                f"{url!r} names no file, as in sqlite:///dlock.db; "
                "for locks within one process use memory://"
            )
        return cls(Path(path).absolute(), options)

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        with self._file.transaction() as db:
            rows = KeyRows(db, self._prefix, claim.key, self._now())
            before, token = rows.load(claim.task), next_token(db)
            step = machine.enter(before, claim, rows.now, token)
            if isinstance(step.verdict, Run) and step.verdict.token == token:
                spend_token(db)
            return Reply(step.verdict, rows.save(claim, before, step, message))

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        with self._file.transaction() as db:
            rows = KeyRows(db, self._prefix, claim.key, self._now())
            before = rows.load(claim.task, claim.successor)
            step = machine.leave(before, claim, outcome, rows.now)
            return Reply(step.verdict, rows.save(claim, before, step, message))

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        verdicts: list[RenewVerdict] = []
        with self._file.transaction() as db:
            for claim in claims:
                rows = KeyRows(db, self._prefix, claim.key, self._now())
                before = rows.load_guard()
                step = machine.renew(before, claim, rows.now)
                rows.save_renewed(step.state)
                verdicts.append(step.verdict)
        return verdicts

    def now(self) -> int:
        return self._now()

    def reap(self, key: str) -> Reply[None]:
        return self._change(key, "", machine.reap)

    def sweep(self, limit: int = 100) -> Swept:
        with self._file.transaction() as db:
            now = self._now()
            overdue = due_keys(db, self._prefix, now, limit)
        wakes = [wake for key in overdue for wake in self._reap_or_put_off(key)]
        with self._file.transaction() as db:
            later = next_due(db, self._prefix)
        next_in = None if later is None else max(0, later - self._now()) / SECOND
        return Swept(tuple(wakes), next_in)

    def _reap_or_put_off(self, key: str) -> tuple[Wake, ...]:
        """One key that cannot be read must not keep the others waiting."""
        with self._file.transaction() as db:
            rows = KeyRows(db, self._prefix, key, self._now())
            try:
                before = rows.load("")
            except UnreadableKey:
                logger.exception("nobody is called for %r", key)
                rows.put_off(CALL_AGAIN_LAST)
                return ()
            return rows.save(_nobody(key, ""), before, machine.reap(before, rows.now), None)

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        with self._file.transaction() as db:
            return parked_tasks(db, self._prefix, task_ids)

    def cancel(self, key: str, task: str) -> Reply[bool]:
        return self._change(key, task, lambda state, now: upkeep.cancel(state, task, now))

    def bury(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        return self._change(key, task, lambda state, now: upkeep.bury(state, task, cause, now))

    def hand_back(self, key: str, task: str) -> Reply[bool]:
        return self._change(key, task, lambda state, now: upkeep.hand_back(state, task, now))

    def dead(self, limit: int = 100) -> list[Burial]:
        with self._file.transaction() as db:
            return dead_messages(db, self._prefix, limit)

    def replay(self, key: str, task: str) -> Reply[bool]:
        with self._file.transaction() as db:
            rows = KeyRows(db, self._prefix, key, self._now())
            before, was = rows.load(task), rows.take_dead(task)
            dead, message = (was.dead, was.message) if was else (None, None)
            step = upkeep.replay(before, task, dead, rows.now)
            return Reply(step.verdict, rows.save(_nobody(key, task), before, step, message))

    def _change(self, key: str, task: str, rule: Callable[[KeyState, int], Step[V]]) -> Reply[V]:
        """Apply *rule* to what concerns *task*, for nobody's claim."""
        with self._file.transaction() as db:
            rows = KeyRows(db, self._prefix, key, self._now())
            before = rows.load(task)
            step = rule(before, rows.now)
            return Reply(step.verdict, rows.save(_nobody(key, task), before, step, None))

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        with self._file.transaction() as db:
            return write_notes(db, self._prefix, key, token, notes)

    def notes(self, key: str) -> dict[str, bytes]:
        with self._file.transaction() as db:
            return read_notes(db, self._prefix, key)

    def peek(self, key: str) -> KeyState:
        with self._file.transaction() as db:
            return KeyRows(db, self._prefix, key, self._now()).load_all()

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        first = first_of(cursor)
        with self._file.transaction() as db:
            return list_keys(db, self._prefix, first, limit, waiting)

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """A hundred at a time, so that nobody waits long who has to write."""
        parts = (keys[start : start + LOOK] for start in range(0, len(keys), LOOK))
        return [state for part in parts for state in self._look(part)]

    def _look(self, keys: Sequence[str]) -> list[KeyState]:
        with self._file.transaction() as db:
            now = self._now()
            return [KeyRows(db, self._prefix, key, now).load_head() for key in keys]

    def missing(self) -> str:
        if self._file.path.exists():
            return ""
        return (
            f"there is no lock store {self._file.path}: the first worker makes it, and a relative "
            "path in dlock_url leads elsewhere from another folder"
        )

    def close(self) -> None:
        """Close the file; the next operation opens it again."""
        self._file.close()


def _nobody(key: str, task: str) -> Claim:
    return Claim(key, task, nonce="", ttl=0)


def _timeout(options: BackendOptions) -> float:
    unknown = sorted(set(options.driver) - {"timeout"})
    if unknown:
        raise ConfigurationError(
            f"dlock_backend_options for sqlite knows timeout only, got {', '.join(unknown)}"
        )
    timeout = options.driver.get("timeout", BUSY_TIMEOUT)
    if not isinstance(timeout, int | float) or not math.isfinite(timeout) or timeout < 0:
        raise ConfigurationError(f"timeout must be a number of seconds, got {timeout!r}")
    return float(timeout)
