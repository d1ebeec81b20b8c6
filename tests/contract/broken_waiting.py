"""Stores with one known defect each in how they end what waits, and how they sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_dlock.core.state import Claim, End, Ending, RenewVerdict
from celery_dlock.stores.base import BackendOptions, Reply, Swept
from tests.contract.broken import Broken, Entered


class ForgetsPatience(Broken):
    noticed_by = "test_a_long_queue_that_waited_too_long_is_ended_window_by_window"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, gives_up=0)


class TakesAnyNumberOfMessages(Broken):
    noticed_by = "test_a_dropped_message_stays_until_somebody_has_brought_it_to_its_end"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, max_waiting=0)


class RefusesWhereTheOldestHasToGo(Broken):
    noticed_by = "test_a_dropped_message_stays_until_somebody_has_brought_it_to_its_end"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, drop_oldest=False)


class DropsWhoeverIsTheOldest(Broken):
    """As it was: the newest of one task ended those of others."""

    noticed_by = "test_nobody_makes_room_for_another_task"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, name="", drop_oldest=claim.drop_oldest or claim.max_waiting == 0)


class DropsTheOldestWithoutAWord(Broken):
    noticed_by = "test_a_kept_message_makes_no_room"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        return replace(reply, wakes=tuple(w for w in reply.wakes if w.ending != Ending.DROPPED))


class DoesNotSayThatItIsAnEnding(Broken):
    noticed_by = "test_a_dropped_message_stays_until_somebody_has_brought_it_to_its_end"

    def reap(self, key: str) -> Reply[None]:
        reply = super().reap(key)
        return replace(reply, wakes=tuple(replace(wake, ending=None) for wake in reply.wakes))


class EndsTwice(Broken):
    noticed_by = "test_one_delivery_brings_an_ending_about"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        if found := self._keys.get(claim.key):
            untaken = tuple(replace(grant, taker="") for grant in found.state.grants)
            found.state = replace(found.state, grants=untaken)
        return super().enter(claim, message)


class LosesAnEndingThatWasTaken(Broken):
    noticed_by = "test_an_ending_that_its_taker_does_not_bring_about_is_woken_again"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, End):
            found = self._keys[claim.key]
            left = tuple(grant for grant in found.state.grants if not grant.taker)
            found.state = replace(found.state, grants=left)
        return reply


class SweepsNothing(Broken):
    noticed_by = "test_a_wake_of_a_published_message_is_repeated_by_a_sweep"

    def sweep(self, limit: int = 100) -> Swept:
        return Swept((), super().sweep(0).next_in)


class ForgetsWhatItSwept(Broken):
    noticed_by = "test_a_wake_of_a_published_message_is_repeated_by_a_sweep"

    def sweep(self, limit: int = 100) -> Swept:
        return replace(super().sweep(limit), wakes=())


class SweepsTooEarly(Broken):
    noticed_by = "test_a_wake_of_a_published_message_is_repeated_by_a_sweep"

    def sweep(self, limit: int = 100) -> Swept:
        real, self._now = self._now, lambda: real() + 1
        try:
            return super().sweep(limit)
        finally:
            self._now = real


class SweepsEverything(Broken):
    """As it is with a list of keys in place of an index: it calls whoever has not answered yet."""

    noticed_by = "test_a_wake_of_a_published_message_is_repeated_by_a_sweep"

    def sweep(self, limit: int = 100) -> Swept:
        for found in self._keys.values():
            overdue = tuple(replace(grant, due=0) for grant in found.state.grants)
            found.state = replace(found.state, grants=overdue)
        return super().sweep(limit)


class SweepsTwiceAtOnce(Broken):
    """Reads what is due, and calls it without a look at whether another has done so."""

    noticed_by = "test_a_wake_that_nobody_answers_is_repeated_by_a_sweep"

    def sweep(self, limit: int = 100) -> Swept:
        with self._mutex:
            before = {key: found.state for key, found in self._keys.items()}
        swept = super().sweep(limit)
        for wake in swept.wakes:
            self._keys[wake.key].state = before[wake.key]
        return swept


class KnowsNoNextInstant(Broken):
    noticed_by = "test_a_wake_of_a_published_message_is_repeated_by_a_sweep"

    def sweep(self, limit: int = 100) -> Swept:
        return replace(super().sweep(limit), next_in=None)


class SweepsMoreThanItShould(Broken):
    noticed_by = "test_the_most_overdue_keys_come_first_and_no_more_than_asked_for"

    def sweep(self, limit: int = 100) -> Swept:
        return super().sweep(limit * 10)


class DoesNotSayThatMoreIsDue(Broken):
    noticed_by = "test_the_most_overdue_keys_come_first_and_no_more_than_asked_for"

    def sweep(self, limit: int = 100) -> Swept:
        swept = super().sweep(limit)
        return replace(swept, next_in=swept.next_in or None)


class IsDueWhenTheFirstLeaseWouldHaveEnded(Broken):
    """Renewal leaves the index alone, and the sweep does not put it right."""

    noticed_by = "test_a_renewed_lease_makes_its_key_due_later"

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

    noticed_by = "test_a_wake_of_a_published_message_is_repeated_by_a_sweep"

    def _dues(self) -> list[tuple[int, str]]:
        return [(at, key) for at, key in super()._dues() if self.holders(key)]
