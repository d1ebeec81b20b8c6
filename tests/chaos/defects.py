"""Stores with one known defect each, for the campaign to find: copies of the one on SQLite.

They are the ones the contract knows, made for several processes, and come the way a third party's
store does: by an entry point of an installed distribution.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Self

from celery_dlock.core.operations import Enter
from celery_dlock.core.state import Claim, EnterVerdict, LeaveVerdict, Outcome, Run
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


class LetsNewcomersOvertake(Copy):
    """Who comes while the key is free has it, whoever was woken or waits."""

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        operation = Enter(claim, message)
        with self.transaction([claim.key]) as (db, now):
            rows = self._rows(db, claim.key, now)
            before, token = rows.load(operation), rows._next_token(operation)
            waits = any(entry.task == claim.task for entry in before.waiting)
            called = any(grant.task == claim.task for grant in before.grants)
            if not (before.holders or waits or called):
                before = replace(before, grants=(), waiting=(), parked=0)
            step = operation.apply(before, now, token)
            if isinstance(step.verdict, Run) and step.verdict.token == token:
                db.execute("UPDATE token SET next = next + 1")
            return Reply(step.verdict, rows.save(operation, before, step))


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


def scheme(store: type[Copy]) -> str:
    """That of its URLs."""
    return store.__name__.lower()


def install(folder: Path) -> None:
    """A distribution in *folder* that brings them all."""
    info = folder / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    stores: list[type[Copy]] = [Copy, *Copy.__subclasses__()]
    entries = [f"{scheme(store)} = {__name__}:{store.__name__}" for store in stores]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *entries]))
