"""Stores with one known defect each, for the campaign to find: copies of that on SQLite or Redis.

They are the ones the contract knows, made for several processes, and come the way a third party's
store does: by an entry point of an installed distribution.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Self

from celery_dlock.core.debounce import Postponed
from celery_dlock.core.operations import Leave
from celery_dlock.core.state import (
    Busy,
    Claim,
    EnterVerdict,
    LeaveVerdict,
    Mode,
    Outcome,
    Run,
    WaitMode,
)
from celery_dlock.registry import GROUP
from celery_dlock.stores.base import BackendOptions, Reply, Swept, Wake
from celery_dlock.stores.sql.sqlite import SqliteBackend


class Copy(SqliteBackend):
    """The store in a file, under a scheme of its own."""

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        return super().from_url(f"sqlite{url[url.index('://') :]}", options)


class FreesWhoeverHolds(Copy):
    """A late ``leave`` frees the one that has the key by now."""

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        wakes: tuple[Wake, ...] = ()
        for holder in self.peek(claim.key).holders:
            if holder.task != claim.task:
                other = replace(claim, task=holder.task, nonce=holder.nonce)
                wakes += super().leave(other, Outcome.OVER).wakes
        reply = super().leave(claim, outcome, message)
        return replace(reply, wakes=wakes + reply.wakes)


class WakesTheLast(Copy):
    """Who came last is woken first."""

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        operation = Leave(claim, outcome, message)
        with self.transaction([claim.key]) as (db, now):
            rows = self._rows(db, claim.key, now)
            before = rows.load(operation)
            step = operation.apply(replace(before, waiting=before.waiting[::-1]), now)
            return rows.commit(operation, before, step)


class WakesNobody(Copy):
    """Who is woken never hears of it, nor is woken again."""

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        return replace(super().enter(claim, message), wakes=())

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        return replace(super().leave(claim, outcome, message), wakes=())

    def sweep(self, limit: int = 100) -> Swept:
        return Swept((), None)


class ForgetsWhatIsDone(Copy):
    """A copy of a finished task runs again."""

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        over = Outcome.OVER if outcome is Outcome.DONE else outcome
        return super().leave(claim, over, message)


class HandsOutOldTokens(Copy):
    """A token is smaller than the one before it."""

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Run):
            return replace(reply, verdict=replace(reply.verdict, token=2**40 - reply.verdict.token))
        return reply


class KeepsAKeyOfTheDead(Copy):
    """A lease does not end with the process that had it."""

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        return super().enter(replace(claim, ttl=1000 * claim.ttl), message)


class LetsOneMoreIn(Copy):
    """One more than the limit."""

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        mode = Mode.LIMITED if claim.mode is Mode.EXCLUSIVE else claim.mode
        return super().enter(replace(claim, mode=mode, limit=claim.limit + 1), message)


class LetsReadersIn(Copy):
    """Readers run whoever writes, and are not remembered."""

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        if claim.mode is Mode.SHARED:
            return Reply(Run(0, 0))
        return super().enter(claim, message)


class ReservesNothing(Copy):
    """A key is free between a task and its retry."""

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        return super().leave(replace(claim, successor=""), outcome, message)


class NeverCools(Copy):
    """A key is open as soon as its holder has left."""

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        return super().enter(replace(claim, cooldown=0), message)


class DropsTheNewest(Copy):
    """Where the newest is to replace who waits, it goes itself."""

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        return super().enter(replace(claim, drop_oldest=False), message)


class KeepsTheOldest(Copy):
    """The first call of those that are debounced has the arguments."""

    def postpone(
        self, claim: Claim, message: bytes, delay: int, max_delay: int
    ) -> Reply[Postponed]:
        waiting = self.peek(claim.key).waiting
        old = self.message(claim.key, waiting[0].task) if waiting else None
        return super().postpone(claim, old or message, delay, max_delay)


class ForgetsWhoIsUnique(Copy):
    """A unique claim is gone at once."""

    def swap(self, name: str, was: bytes | None, becomes: bytes | None, stays: int) -> bytes | None:
        return super().swap(name, was, becomes, 1)


class RefusesTheFirst(Copy):
    """Who does not wait is refused although nobody has the key."""

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        if claim.wait is WaitMode.NOT:
            return Reply(Busy(None, 0, 0))
        return super().enter(claim, message)


class KeepsNothing(
    LetsReadersIn,
    ReservesNothing,
    NeverCools,
    DropsTheNewest,
    KeepsTheOldest,
    ForgetsWhoIsUnique,
    RefusesTheFirst,
):
    """All of that, each where the others are not."""


def scheme(store: type[Copy]) -> str:
    """That of its URLs."""
    return store.__name__.lower()


def install(folder: Path) -> None:
    """A distribution in *folder* that brings them all."""
    info = folder / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    stores: list[type[Copy]] = [Copy, *Copy.__subclasses__(), KeepsNothing]
    entries = [f"{scheme(store)} = {__name__}:{store.__name__}" for store in stores]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *entries]))
