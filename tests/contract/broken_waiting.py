"""Stores with one known defect each in how they end what waits, and how they sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_dlock.backends.base import BackendOptions, Reply, Swept
from celery_dlock.core.state import Claim, End, Ending, RenewVerdict
from tests.contract.broken import Broken, Entered


class ForgetsPatience(Broken):
    def altered(self, claim: Claim) -> Claim:
        return replace(claim, gives_up=0)


class TakesAnyNumberOfMessages(Broken):
    def altered(self, claim: Claim) -> Claim:
        return replace(claim, max_waiting=0)


class RefusesWhereTheOldestHasToGo(Broken):
    def altered(self, claim: Claim) -> Claim:
        return replace(claim, drop_oldest=False)


class DropsTheOldestWithoutAWord(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        return replace(reply, wakes=tuple(w for w in reply.wakes if w.ending != Ending.DROPPED))


class DoesNotSayThatItIsAnEnding(Broken):
    def reap(self, key: str) -> Reply[None]:
        reply = super().reap(key)
        return replace(reply, wakes=tuple(replace(wake, ending=None) for wake in reply.wakes))


class EndsTwice(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        if found := self._keys.get(claim.key):
            untaken = tuple(replace(grant, taker="") for grant in found.state.grants)
            found.state = replace(found.state, grants=untaken)
        return super().enter(claim, message)


class LosesAnEndingThatWasTaken(Broken):
    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, End):
            found = self._keys[claim.key]
            left = tuple(grant for grant in found.state.grants if not grant.taker)
            found.state = replace(found.state, grants=left)
        return reply


class SweepsNothing(Broken):
    def sweep(self, limit: int = 100) -> Swept:
        return Swept((), super().sweep(0).next_in)


class ForgetsWhatItSwept(Broken):
    def sweep(self, limit: int = 100) -> Swept:
        return replace(super().sweep(limit), wakes=())


class SweepsTooEarly(Broken):
    def sweep(self, limit: int = 100) -> Swept:
        real, self._now = self._now, lambda: real() + 1
        try:
            return super().sweep(limit)
        finally:
            self._now = real


class SweepsEverything(Broken):
    """As it is with a list of keys in place of an index: it calls whoever has not answered yet."""

    def sweep(self, limit: int = 100) -> Swept:
        for found in self._keys.values():
            overdue = tuple(replace(grant, due=0) for grant in found.state.grants)
            found.state = replace(found.state, grants=overdue)
        return super().sweep(limit)


class SweepsTwiceAtOnce(Broken):
    """Reads what is due, and calls it without a look at whether another has done so."""

    def sweep(self, limit: int = 100) -> Swept:
        with self._mutex:
            before = {key: found.state for key, found in self._keys.items()}
        swept = super().sweep(limit)
        for wake in swept.wakes:
            self._keys[wake.key].state = before[wake.key]
        return swept


class KnowsNoNextInstant(Broken):
    def sweep(self, limit: int = 100) -> Swept:
        return replace(super().sweep(limit), next_in=None)


class SweepsMoreThanItShould(Broken):
    def sweep(self, limit: int = 100) -> Swept:
        return super().sweep(limit * 10)


class DoesNotSayThatMoreIsDue(Broken):
    def sweep(self, limit: int = 100) -> Swept:
        swept = super().sweep(limit)
        return replace(swept, next_in=swept.next_in or None)


class IsDueWhenTheFirstLeaseWouldHaveEnded(Broken):
    """Renewal leaves the index alone, and the sweep does not put it right."""

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self.stale: dict[str, int] = {}

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        indexed = {key: at for at, key in self._dues()}
        self.stale |= {c.key: indexed[c.key] for c in claims if c.key in indexed}
        return super().renew(claims)

    def _dues(self) -> list[tuple[int, str]]:
        return sorted((self.stale.get(key, at), key) for at, key in super()._dues())


class CountsKeysOnlyWhereSomebodyHolds(Broken):
    """A call that nobody answers stands in no index."""

    def _dues(self) -> list[tuple[int, str]]:
        return [(at, key) for at, key in super()._dues() if self.holders(key)]
