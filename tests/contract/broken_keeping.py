"""Stores with one known defect each in what they keep of running, published and retried tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    Outcome,
    Reason,
    Renewed,
    RenewVerdict,
    Run,
    WaitMode,
)
from celery_dlock.stores.base import Reply, Swept
from tests.contract.broken import Broken, Entered, Left


class ForgetsTheMessageAtRun(Broken):
    noticed_by = "test_a_kept_message_is_woken_first_when_its_run_was_abandoned"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, keep=False)


class ForgetsTheMessageOfWhoWasCalled(Broken):
    """Keeps what came with the delivery, and not what it had already."""

    noticed_by = "test_the_duplicate_of_the_broker_may_answer_the_wake"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Run) and claim.task in self._keys[claim.key].messages:
            self._keys[claim.key].messages[claim.task] = message or b""
        return reply


class KeepsTheMessageOfWhatIsDone(Broken):
    noticed_by = "test_a_kept_message_goes_when_its_task_is_through"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        found = self._keys.get(claim.key)
        if found and claim.task in found.messages and outcome is Outcome.DONE:
            return super().leave(claim, Outcome.ABANDONED, message)
        return super().leave(claim, outcome, message)


class CountsWhatNeverRanAsLost(Broken):
    """As it was: ten answers in a row that came too late, and a message was dead-lettered."""

    noticed_by = "test_nobody_is_dead_lettered_because_answers_were_lost"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        unused = outcome is Outcome.UNUSED
        return super().leave(claim, Outcome.ABANDONED if unused else outcome, message)


class LosesATurnOfWhichNobodyHeard(Broken):
    """As it was: the next one overtook a task as the store stood still."""

    noticed_by = "test_a_turn_that_nobody_heard_of_is_kept_with_its_message"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        unheard = outcome is Outcome.REPEAT and not claim.begun
        return super().leave(claim, Outcome.UNUSED if unheard else outcome, message)


class WaitsForeverForWhoKeepsATurn(Broken):
    noticed_by = "test_a_turn_that_nobody_heard_of_is_woken_where_its_task_does_not_come"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        unheard = outcome is Outcome.REPEAT and not claim.begun
        patience = 1000 * claim.patience if unheard else claim.patience
        return super().leave(replace(claim, patience=patience), outcome, message)


class GivesATurnToWhoHadNone(Broken):
    noticed_by = "test_who_had_no_turn_gets_none_because_nobody_heard"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        return super().leave(replace(claim, begun=True), outcome, message)


class ForgetsWhatWaitsWithALostAnswer(Broken):
    noticed_by = "test_what_waits_stays_whoever_did_not_hear_that"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        unused = outcome is Outcome.UNUSED
        return super().leave(claim, Outcome.OVER if unused else outcome, message)


class ForgetsThatATurnHadCome(Broken):
    noticed_by = (
        "test_a_task_that_nobody_heard_to_have_the_key_comes_before_those_that_have_not_started"
    )

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        reply = super().leave(claim, outcome, message)
        found = self._keys.get(claim.key)
        if outcome is Outcome.UNUSED and found and claim.task in found.past:
            found.past[claim.task].lost = 0
        return reply


class CountsTheMessageOfWhoRuns(Broken):
    noticed_by = "test_a_kept_message_does_not_count_as_waiting"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Busy):
            counted = self._keys[claim.key].state.parked
            return replace(reply, verdict=replace(reply.verdict, parked=counted))
        return reply


class KeepsNewcomersOutForAKeptMessage(Broken):
    noticed_by = "test_a_free_slot_wakes_one_parked_task_and_two_wake_two"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        found = self._keys.get(claim.key)
        if found and found.state.parked and not self._comes_again(claim):
            claim = replace(claim, limit=1)
        return super().enter(claim, message)

    def _comes_again(self, claim: Claim) -> bool:
        state = self._keys[claim.key].state
        return claim.task in {*(h.task for h in state.holders), *(g.task for g in state.grants)}


class IsImpatientWithWhoRan(Broken):
    """As it was: the kept message has the patience of one that waits."""

    noticed_by = "test_a_run_that_lasted_longer_than_its_patience_is_woken_to_run_again"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Run) and claim.keep and claim.gives_up:
            found = self._keys[claim.key]
            ends = self._now() + claim.gives_up
            waiting = tuple(
                replace(w, gives_up=ends) if w.task == claim.task else w
                for w in found.state.waiting
            )
            found.state = replace(found.state, waiting=waiting)
        return reply


class DoesNotSweepForWhoRuns(Broken):
    """Its index of due keys knows of waiting messages only."""

    noticed_by = "test_a_wake_of_a_published_message_is_repeated_by_a_sweep"

    def sweep(self, limit: int = 100) -> Swept:
        running = {
            key: found
            for key, found in self._keys.items()
            if found.state.parked == len(found.state.holders)
        }
        for key in running:
            del self._keys[key]
        swept = super().sweep(limit)
        self._keys.update(running)
        return swept


class SweepsByTheFirstLease(Broken):
    """Calls a kept message when the lease ends that was first given, whatever was renewed."""

    noticed_by = "test_a_kept_message_is_not_woken_as_long_as_the_lease_is_renewed"

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        before = {c.key: self._keys[c.key].state for c in claims if c.key in self._keys}
        verdicts = super().renew(claims)
        for claim, verdict in zip(claims, verdicts, strict=True):
            state = before.get(claim.key)
            if isinstance(verdict, Renewed) and state and state.parked:
                self._keys[claim.key].state = state
        return verdicts


class RunsWhatIsPublished(Broken):
    noticed_by = "test_a_wake_of_a_published_message_is_repeated_by_a_sweep"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, wait=WaitMode.QUEUE) if claim.wait is WaitMode.ENQUEUE else claim


class NeverCallsWhatIsPublished(Broken):
    noticed_by = "test_a_lost_run_does_not_make_a_publisher_run"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        return replace(reply, wakes=()) if claim.wait is WaitMode.ENQUEUE else reply


class CallsEverythingThatIsPublished(Broken):
    """Hands each message to the broker as well, as an ordinary queue does."""

    noticed_by = "test_a_full_queue_takes_no_published_message"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, limit=1_000) if claim.wait is WaitMode.ENQUEUE else claim


class TakesAReservedPlaceForAMessage(Broken):
    noticed_by = "test_a_published_message_takes_over_a_place_and_what_is_reserved_for_it"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        found = self._keys.get(claim.key)
        turns = [g.task for g in found.state.grants] if found else []
        if claim.wait is WaitMode.ENQUEUE and claim.task in turns:
            return Reply(Drop(Reason.WAITING))
        return super().enter(claim, message)


class ReservesNothing(Broken):
    noticed_by = "test_a_reader_that_retries_lets_readers_in"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, successor="")


class ReservesNothingForTheTaskItself(Broken):
    noticed_by = "test_a_task_may_leave_its_turn_to_itself"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, successor="") if claim.successor == claim.task else claim


class ForgetsWhoWaitsBehindOneThatReserves(Broken):
    noticed_by = "test_a_delivery_that_waits_behind_one_that_does_so_is_woken"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        forgets = claim.successor == claim.task
        return super().leave(claim, Outcome.OVER if forgets else outcome, message)


class ReservesForEver(Broken):
    noticed_by = "test_a_reservation_expires_and_a_sweep_wakes_the_next"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        longer = replace(claim, patience=claim.patience * 1_000) if claim.successor else claim
        return super().leave(longer, outcome, message)


class ReservesForWhoeverComes(Broken):
    noticed_by = "test_a_place_is_kept_before_messages_that_came_later"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        found = self._keys.get(claim.key)
        if found:
            kept = tuple(g for g in found.state.grants if g.parked or g.task == claim.task)
            found.state = replace(found.state, grants=kept)
        return super().enter(claim, message)


class ReservesForWhoHasLostItsLock(Broken):
    noticed_by = "test_leaving_again_reserves_nothing_more"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        reply = super().leave(claim, outcome, message)
        if claim.successor and not reply.verdict.carried:
            again = replace(claim, task=claim.successor, wait=WaitMode.PLACE)
            mine = super().enter(replace(again, successor=""))
            if isinstance(mine.verdict, Run):
                super().leave(replace(again, successor=claim.successor), Outcome.OVER)
        return reply


class ReservesBesideAMessageThatWaits(Broken):
    """As it was: the retry had been faster, and nobody woke it."""

    noticed_by = "test_a_retry_that_was_faster_and_waits_is_woken"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        reply = super().leave(claim, outcome, message)
        if claim.successor in [wake.task for wake in reply.wakes]:
            return replace(reply, wakes=())
        return reply
