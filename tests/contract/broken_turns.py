"""Stores with one known defect each in what they do with turns that nobody takes, and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from celery_dlock.core.operations import Leave, OpenSlot, Operation, PutOnHold
from celery_dlock.core.state import Claim, Grant, Holder, KeyState, RenewVerdict, Replaced
from celery_dlock.stores.base import BackendOptions, Reply, Swept
from tests.contract.broken import Broken


class _AltersTurns(Broken):
    """Reads each turn in another way than it was written."""

    noticed_by = ""

    def turn(self, grant: Grant) -> Grant:
        return grant

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        return replace(state, grants=tuple(map(self.turn, state.grants)))


class ReservesForWhoNeverComes(_AltersTurns):
    """Keeps the key for a turn that nobody takes, however often it was woken."""

    noticed_by = "test_the_next_is_woken_when_a_turn_keeps_the_key_no_longer"

    def turn(self, grant: Grant) -> Grant:
        return replace(grant, ordered=True)


class ReservesForStrangersForEver(_AltersTurns):
    noticed_by = "test_a_message_of_another_broker_keeps_the_key_for_half_a_minute_or_so"

    def turn(self, grant: Grant) -> Grant:
        return replace(grant, handed_back=grant.handed_back and grant.due)


class ForgetsThePatienceOfWhoWasCalled(_AltersTurns):
    noticed_by = "test_a_turn_that_nobody_takes_ends_when_it_has_waited_for_long_enough"

    def turn(self, grant: Grant) -> Grant:
        return replace(grant, gives_up=None)


class ForgetsWhatWasHandedBack(_AltersTurns):
    """So that what is for another broker never ends: it counts as never woken."""

    noticed_by = "test_a_message_of_another_broker_ends_when_it_has_waited_for_long_enough"

    def turn(self, grant: Grant) -> Grant:
        return replace(grant, handed_back=None)


class BreaksThePromisedOrder(_AltersTurns):
    noticed_by = "test_nobody_overtakes_a_turn_whose_order_was_promised"

    def turn(self, grant: Grant) -> Grant:
        return replace(grant, ordered=False)


class IsPatientAnew(_AltersTurns):
    """Counts from the start when a turn goes back into the queue."""

    noticed_by = "test_who_comes_late_to_its_turn_is_the_next_and_as_patient_as_before"

    def turn(self, grant: Grant) -> Grant:
        return replace(grant, gives_up=grant.gives_up and grant.gives_up + 1)


class ForgetsWhatCoolsDown(Broken):
    """Opens the slot as soon as its holder has left."""

    noticed_by = "test_a_slot_that_is_left_early_opens_when_it_has_cooled_down[done]"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        return replace(super()._load(operation, now), cooling=())


class CoolsForAMomentTooLong(Broken):
    noticed_by = "test_who_waits_is_woken_when_it_has_cooled_down"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        cooling = tuple(replace(slot, until=slot.until + 1) for slot in state.cooling)
        return replace(state, cooling=cooling)


class OpensAllSlots(Broken):
    noticed_by = "test_a_slot_can_be_opened_by_name_and_who_waits_is_woken"

    def apply(self, operation: Operation[Any]) -> Reply[Any]:
        reply = super().apply(operation)
        if isinstance(operation, OpenSlot):
            found = self._keys[operation.key]
            found.state = replace(found.state, cooling=())
        return reply


class ForgetsWhoKeepsItClosed(Broken):
    noticed_by = "test_nobody_gets_the_key_and_all_are_told_who_keeps_it_and_why"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        return replace(state, hold=state.hold and replace(state.hold, by="somebody"))


class EndsAHoldWithWhoRan(Broken):
    """Takes it for what cools down behind a holder."""

    noticed_by = "test_who_has_it_goes_on_and_is_the_last_for_a_while"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        return replace(state, hold=None) if isinstance(operation, Leave) else state


class EndsWhateverHold(Broken):
    noticed_by = "test_only_the_hold_that_was_shown_is_replaced_or_ended"

    def put_on_hold(self, key: str, was: str, *others: Any) -> Reply[bool]:
        hold = self.peek(key).hold
        return super().put_on_hold(key, hold.name if hold else "", *others)


class CountsTheTimeOnHold(Broken):
    noticed_by = "test_its_time_does_not_count_for_those_who_wait[by itself]"

    def _commit(
        self, operation: Operation[object], before: KeyState, step: Any, now: int
    ) -> Reply[Any]:
        if isinstance(operation, PutOnHold):
            step = replace(step, state=replace(step.state, paused=before.paused))
        return super()._commit(operation, before, step, now)


class ForgetsWhoGaveWay(_AltersTurns):
    """So that it runs again, and replaces the one for which it was to stop."""

    noticed_by = "test_it_ends_when_it_comes_again[abandoned]"

    def turn(self, grant: Grant) -> Grant:
        return grant if grant.waits else replace(grant, due=0)


class ForgetsForWhomATurnIs(_AltersTurns):
    noticed_by = "test_a_turn_that_nobody_has_taken_gives_way_too"

    def turn(self, grant: Grant) -> Grant:
        return replace(grant, by="")


class EndsTheTurnOfAnotherTask(_AltersTurns):
    noticed_by = "test_but_not_a_turn_of_another_task"

    def turn(self, grant: Grant) -> Grant:
        return replace(grant, by_name="refund")


class _AltersHolders(Broken):
    """Reads each holder in another way than it was written."""

    noticed_by = ""

    def holder(self, holder: Holder, now: int) -> Holder:
        return holder

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        return replace(state, holders=tuple(self.holder(h, now) for h in state.holders))


class OpensWhenItsHolderDies(_AltersHolders):
    noticed_by = "test_a_holder_that_dies_leaves_its_slot_closed"

    def holder(self, holder: Holder, now: int) -> Holder:
        return replace(holder, cools=0) if holder.expires <= now else holder


class CoolsFromWhenItIsLeft(_AltersHolders):
    noticed_by = "test_a_slot_that_is_left_early_opens_when_it_has_cooled_down[over]"

    def holder(self, holder: Holder, now: int) -> Holder:
        return replace(holder, cools=holder.cools and now + holder.cools - holder.since)


class DoesNotCoolForOthers(_AltersHolders):
    """Forgets it unless whoever gives the key back knows of it."""

    noticed_by = "test_whoever_gives_back_for_the_holder_need_not_know_of_it"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        self._cools = operation.claim.cooldown > 0
        return super()._load(operation, now)

    def holder(self, holder: Holder, now: int) -> Holder:
        return holder if self._cools else replace(holder, cools=0)


class ForgetsWhoIsToStop(_AltersHolders):
    noticed_by = "test_who_runs_is_asked_to_give_way_and_its_lease_lasts_no_longer"

    def holder(self, holder: Holder, now: int) -> Holder:
        return replace(holder, replaced_by=holder.replaced_by and "")


class ReplacesWhoever(_AltersHolders):
    """Whether or not it need give way."""

    noticed_by = "test_who_need_not_give_way_does_not"

    def holder(self, holder: Holder, now: int) -> Holder:
        return replace(holder, replaced_by=holder.replaced_by or "")


class KeepsWhoAskedFirst(_AltersHolders):
    noticed_by = "test_the_newest_one_asks"

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self._first = ""

    def holder(self, holder: Holder, now: int) -> Holder:
        self._first = self._first or holder.replaced_by or ""
        return replace(holder, replaced_by=self._first)


class LetsWhoIsToStopGoOn(Broken):
    """Its renewals count, so that its lease never ends."""

    noticed_by = "test_who_runs_is_asked_to_give_way_and_its_lease_lasts_no_longer"

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        verdicts = super().renew(claims)
        for claim, verdict in zip(claims, verdicts, strict=True):
            if isinstance(verdict, Replaced):
                self.enter(claim)
        return verdicts


class DoesNotCountItsCalls(Broken):
    noticed_by = "test_a_wake_says_how_often_it_was_made"

    def sweep(self, limit: int = 100) -> Swept:
        swept = super().sweep(limit)
        return replace(swept, wakes=tuple(replace(wake, woken=1) for wake in swept.wakes))


class _AltersPauses(Broken):
    noticed_by = ""

    def paused(self, state: KeyState) -> int:
        return state.paused

    def _commit(
        self, operation: Operation[object], before: KeyState, step: Any, now: int
    ) -> Reply[Any]:
        reply: Reply[Any] = super()._commit(operation, before, step, now)
        if found := self._keys.get(operation.claim.key):
            found.state = replace(found.state, paused=self.paused(found.state))
        return reply


class ForgetsPauses(_AltersPauses):
    noticed_by = "test_patience_ends_later_by_the_pause"

    def paused(self, state: KeyState) -> int:
        return 0


class KeepsAPauseForWhoComesLater(_AltersPauses):
    noticed_by = "test_a_pause_is_forgotten_with_the_last_message"

    def paused(self, state: KeyState) -> int:
        self.most = max(getattr(self, "most", 0), state.paused)
        return self.most
