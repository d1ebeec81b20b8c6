"""The machine over a store that commits only if a key's guard still stands: ZooKeeper, etcd.

A free key costs one commit to take, on the chance that it has no guard at all, and one to give
back, on the chance that the guard is still as it was left. Whoever is wrong reads the key,
computes and commits again; of two that overlap, one always gets through.

The store has no clock that a commit could ask. What hangs on time for safety, the life of a
holder, is the store's own: a holder's row is gone when its process is. What hangs on it for
liveness alone, how long to wait for an answer and the like, goes by :meth:`Rows.now`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from celery_dlock.backends import guarded_shortcuts as shortcuts
from celery_dlock.backends.base import (
    BackendOptions,
    Burial,
    KeyPage,
    LockBackend,
    Reply,
    Swept,
    by_age,
)
from celery_dlock.backends.guarded_commit import Rule, Transactions
from celery_dlock.backends.guarded_notes import Notes
from celery_dlock.backends.guarded_sweep import Sweeping
from celery_dlock.backends.lapses import Lapses
from celery_dlock.backends.listing import last_of, page
from celery_dlock.backends.record import decode_dead
from celery_dlock.backends.rows import Kind, Name, Row, Rows
from celery_dlock.core import machine, upkeep
from celery_dlock.core.state import (
    Cause,
    Claim,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Left,
    Lost,
    Mode,
    Outcome,
    Renewed,
    RenewVerdict,
    Run,
    task_id_of,
)

#: The token of a grant until its commit has a number.
_UNNUMBERED = -1


class GuardedBackend(LockBackend):
    """A lock store over :class:`~celery_dlock.backends.rows.Rows`.

    With ``options.clock`` leases end by that clock, for tests; without, with the process.
    """

    def __init__(self, rows: Rows, options: BackendOptions) -> None:
        self._rows = rows
        self._clock = options.clock
        self._transactions = Transactions(rows, options.clock)
        self._notes = Notes(rows)
        self._own = _Own(rows)
        self._sweeping = Sweeping(rows, self.reap, self._transactions.now)

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        row = _row(claim)
        lapses = self._of_this_process().lapses
        if self._clock is None:  # before it is asked for: the reply may be lost
            lapses.expect(row, claim.ttl)
        try:
            reply = self._enter_free(claim, row) or self._enter(claim, message)
        finally:
            if self._clock is None:
                lapses.answered(row)
        if not isinstance(reply.verdict, Run):
            lapses.forget(row)
        return reply

    def _enter_free(self, claim: Claim, row: Name) -> Reply[EnterVerdict] | None:
        """On the chance that nobody uses the key."""
        commit = None if self._clock else shortcuts.taken(claim, row, self._transactions.now())
        committed = None if commit is None else self._rows.commit(commit)
        if committed is None or committed.guard is None:
            return None
        self._own.alone[row] = committed.guard
        token = committed.number if claim.mode is Mode.EXCLUSIVE else 0
        return Reply(Run(0, token))

    def _enter(self, claim: Claim, message: bytes | None) -> Reply[EnterVerdict]:
        applied = self._transactions.apply(
            claim,
            lambda found: machine.enter(found.state, claim, found.now, _UNNUMBERED),
            message,
        )
        verdict, wakes = applied.reply.verdict, applied.reply.wakes
        if isinstance(verdict, Run) and verdict.token == _UNNUMBERED:
            verdict = replace(verdict, token=applied.committed.number)
        return Reply(verdict, wakes)

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        own, row = self._of_this_process(), _row(claim)
        reply = self._leave_alone(claim, row, outcome, own.alone.pop(row, None))
        if reply is None:
            reply = self._transactions.apply(
                claim,
                lambda found: machine.leave(found.state, claim, outcome, found.now),
                message,
            ).reply
        if isinstance(reply.verdict, Left):  # else it may be that it has yet to come
            own.lapses.forget(row)
        return reply

    def _leave_alone(
        self, claim: Claim, row: Name, outcome: Outcome, guard: Row | None
    ) -> Reply[LeaveVerdict] | None:
        """On the chance that nobody has come since it took the key, and left *guard*."""
        commit = guard and shortcuts.left(claim, row, outcome, guard, self._transactions.now())
        if not commit or self._rows.commit(commit) is None:
            return None
        return Reply(Left(shortcuts.carried(claim, outcome)))

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        if self._clock is not None:
            return [self._renew_by_clock(claim) for claim in claims]
        lapses = self._of_this_process().lapses
        ends: dict[Claim, int] = {}
        for ttl in {claim.ttl for claim in claims}:
            same = [claim for claim in claims if claim.ttl == ttl]
            end = self._transactions.now() + ttl
            alive = self._rows.alive([_row(claim) for claim in same], ttl)
            for claim, lives in zip(same, alive, strict=True):
                if lives and lapses.prolong(_row(claim), ttl):
                    ends[claim] = end
        return [Renewed(ends[claim]) if claim in ends else Lost() for claim in claims]

    def _renew_by_clock(self, claim: Claim) -> RenewVerdict:
        rule: Rule[RenewVerdict] = lambda found: machine.renew(found.state, claim, found.now)  # noqa: E731
        return self._transactions.apply(claim, rule).reply.verdict

    def lease_of(self, ttl: int) -> int:
        return ttl if self._clock is not None else self._rows.lease_of(ttl)

    def now(self) -> int:
        return self._transactions.now()

    def certain(self, timeout: float) -> bool:
        return self._rows.certain(timeout)

    def reap(self, key: str) -> Reply[None]:
        return self._transactions.apply(
            _nobody(key), lambda found: machine.reap(found.state, found.now), confirm=False
        ).reply

    def sweep(self, limit: int = 100) -> Swept:
        return self._sweeping.sweep(limit)

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        names = self._rows.names(Kind.MESSAGE)
        return [(name.key, name.part) for name in names if task_id_of(name.part) in task_ids]

    def cancel(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep(key, task, lambda found: upkeep.cancel(found.state, task, found.now))

    def bury(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        return self._upkeep(
            key, task, lambda found: upkeep.bury(found.state, task, cause, found.now)
        )

    def hand_back(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep(key, task, lambda found: upkeep.hand_back(found.state, task, found.now))

    def dead(self, limit: int = 100) -> list[Burial]:
        names = self._rows.names(Kind.DEAD)
        rows = zip(names, self._rows.read(names), strict=True)
        found = [Burial(name.key, *decode_dead(row.value)) for name, row in rows if row is not None]
        return sorted(found, key=by_age)[:limit]

    def replay(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep(
            key,
            task,
            lambda found: upkeep.replay(found.state, task, found.dead, found.now),
            exhume=True,
        )

    def _upkeep(
        self, key: str, task: str, rule: Rule[bool], *, exhume: bool = False
    ) -> Reply[bool]:
        return self._transactions.apply(_nobody(key, task), rule, exhume=exhume).reply

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        """All or none of a hundred notes, or of half a megabyte; more are written in steps."""
        return self._notes.write(key, token, notes)

    def notes(self, key: str) -> dict[str, bytes]:
        return self._notes.read(key)

    def peek(self, key: str) -> KeyState:
        """The whole state of *key*; costs what the queue is long."""
        return self._transactions.peek(key)

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        """With *waiting* it goes through all that are due some time, for each page anew."""
        last = last_of(cursor)
        if not waiting:
            return page(self._rows.keys(last, limit + 1), limit)
        keys = {name.key for name in self._rows.names(Kind.DUE)}
        return page(sorted(key for key in keys if last is None or key > last), limit)

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        """Each as it was a moment ago: who has just given back may seem to have lost it."""
        return self._transactions.look(keys)

    def close(self) -> None:
        self._own.lapses.clear()  # they go with the connection
        self._rows.close()

    def _of_this_process(self) -> _Own:
        """A forked child has none of its parent's rows, nor the thread that watches over them."""
        if self._own.pid != os.getpid():
            self._own = _Own(self._rows)
        return self._own


class _Own:
    """What a process remembers of its own claims.

    ``alone`` are those that took a free key, with the guard that they left: giving back starts from
    that.
    """

    def __init__(self, rows: Rows) -> None:
        self.pid = os.getpid()
        self.lapses = Lapses(rows.drop)
        self.alone: dict[Name, Row] = {}


def _row(claim: Claim) -> Name:
    return Name(Kind.HOLDER, claim.key, claim.owner)


def _nobody(key: str, task: str = "") -> Claim:
    return Claim(key, task, nonce="", ttl=0)
