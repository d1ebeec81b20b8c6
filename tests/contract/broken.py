"""Stores with one known defect each, most taken from the field. The contract must see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_dlock.core.state import (
    Claim,
    EnterVerdict,
    Holder,
    LeaveVerdict,
    Mode,
    NotHeld,
    Outcome,
    Renewed,
    RenewVerdict,
    Run,
)
from celery_dlock.core.state import Left as HasLeft
from celery_dlock.stores.base import BackendOptions, Reply
from celery_dlock.stores.memory import MemoryBackend, _Key

Entered = Reply[EnterVerdict]
Left = Reply[LeaveVerdict]


class Broken(MemoryBackend):
    """A sound store whose claims can be altered on the way in."""

    #: The test of the contract that fails on it; others may, too.
    noticed_by: str

    def altered(self, claim: Claim) -> Claim:
        return claim

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        return super().enter(self.altered(claim), message)

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        return super().leave(self.altered(claim), outcome, message)

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        return super().renew([self.altered(claim) for claim in claims])

    def holders(self, key: str) -> tuple[Holder, ...]:
        return self._keys.get(key, _Key()).state.holders

    def as_holder(self, claim: Claim) -> Claim:
        """*claim* as if it came from whoever holds the key."""
        for holder in self.holders(claim.key)[:1]:
            return replace(claim, task=holder.task, nonce=holder.nonce)
        return claim


class FreesWhoeverHolds(Broken):
    noticed_by = "test_a_reader_that_leaves_releases_nothing_of_another"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        return super().leave(self.as_holder(claim), outcome, message)


class FreesTheSuccessorOnALateLeave(Broken):
    noticed_by = "test_a_holder_that_wakes_too_late_does_not_free_its_successor"

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self.ran: set[tuple[str, str]] = set()

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Run):
            self.ran.add((claim.key, claim.owner))
        return reply

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        reply = super().leave(claim, outcome, message)
        if isinstance(reply.verdict, NotHeld) and (claim.key, claim.owner) in self.ran:
            super().leave(self.as_holder(claim), outcome, message)
        return reply


class FreesAnotherDeliveryOfTheTask(Broken):
    noticed_by = "test_a_task_to_be_repeated_is_carried_when_another_duplicate_runs"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        same = [h for h in self.holders(claim.key) if h.task == claim.task]
        claim = replace(claim, nonce=same[0].nonce) if same else claim
        return super().leave(claim, outcome, message)


class KnowsTheOwnerByJoinedText(Broken):
    noticed_by = "test_a_task_and_a_nonce_that_join_to_the_same_text_are_told_apart"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        for holder in self.holders(claim.key):
            if f"{holder.task}|{holder.nonce}" == claim.owner:
                claim = replace(claim, task=holder.task, nonce=holder.nonce)
        return super().leave(claim, outcome, message)


class GivesTheSameTokenToAll(Broken):
    noticed_by = "test_a_hundred_grants_within_one_instant_grow_strictly"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        self._token = 6
        return super().enter(claim, message)


class ForgetsTheTokenOfAnIdleKey(Broken):
    noticed_by = "test_a_token_grows_after_the_key_was_idle_for_a_month"

    def _tidy(self, key: str) -> None:
        super()._tidy(key)
        if not self._keys:
            self._token = 0


class TakesTheTokenFromTheClock(Broken):
    noticed_by = "test_a_hundred_grants_within_one_instant_grow_strictly"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        self._token = self._now()
        return super().enter(claim, message)


class ReadsTheTokenAgainWhenAskedAgain(Broken):
    noticed_by = "test_a_refused_task_does_not_change_the_holders_token"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Run) and claim.mode is Mode.EXCLUSIVE:
            return replace(reply, verdict=replace(reply.verdict, token=self._token))
        return reply


class ReadsTheTokenAgainAtRenewal(Broken):
    noticed_by = "test_a_token_stays_the_same_over_a_renewal"

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        verdicts = super().renew(claims)
        for claim in claims:
            if found := self._keys.get(claim.key):
                renewed = tuple(
                    replace(h, token=self._token) if h.task == claim.task else h
                    for h in found.state.holders
                )
                found.state = replace(found.state, holders=renewed)
        return verdicts


class RenewsAfterTheEnd(Broken):
    noticed_by = "test_a_renewal_after_the_end_is_lost_even_if_nobody_took_the_key"

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        for claim in claims:
            if found := self._keys.get(claim.key):
                alive = tuple(
                    replace(h, expires=self._now() + 1) if h.nonce == claim.nonce else h
                    for h in found.state.holders
                )
                found.state = replace(found.state, holders=alive)
        return super().renew(claims)


class HoldsWithoutAnEnd(Broken):
    noticed_by = "test_a_newcomer_does_not_overtake_those_beyond_the_window"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, ttl=claim.ttl * 1_000)


class RenewsInWordsOnly(Broken):
    noticed_by = "test_a_kept_message_is_not_woken_as_long_as_the_lease_is_renewed"

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        before = {claim.key: self._keys.get(claim.key) for claim in claims}
        states = {key: found.state for key, found in before.items() if found}
        verdicts = super().renew(claims)
        for key, state in states.items():
            self._keys[key].state = state
        return verdicts


class RenewsForAnybody(Broken):
    noticed_by = "test_a_renewal_after_a_successor_came_is_lost_and_does_not_touch_it"

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        return super().renew([self.as_holder(claim) for claim in claims])


class RenewsTheFirstOnly(Broken):
    noticed_by = "test_renewals_of_several_holders_of_one_key_all_count"

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        first = super().renew(claims[:1])
        return first + [Renewed(self._now() + claim.ttl) for claim in claims[1:]]


class KnowsNobodyWhoAsksAgain(Broken):
    noticed_by = "test_a_release_asked_again_is_answered_as_the_first_time"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, again=False)


class CallsOnceWhoeverAsksAgain(Broken):
    noticed_by = "test_a_release_asked_again_is_answered_as_the_first_time"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        reply = super().leave(claim, outcome, message)
        return replace(reply, wakes=()) if claim.again else reply


class TakesWhoeverAsksAgainAtHisWord(Broken):
    noticed_by = "test_a_finished_task_whose_lock_is_another_s_is_told_so_although_it_asks_again"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        reply = super().leave(claim, outcome, message)
        return replace(reply, verdict=HasLeft(reply.verdict.carried)) if claim.again else reply
