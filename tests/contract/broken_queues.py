"""More stores with one known defect each: of memory, of the queue, of keys and of atomicity."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, ClassVar

from celery_dlock.core.operations import Enter, Operation
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    KeyState,
    Mode,
    Outcome,
    Park,
    Reason,
    Run,
    Same,
    WaitMode,
)
from celery_dlock.stores.base import BackendOptions, Reply, Wake
from celery_dlock.stores.memory import _Key
from tests.contract.broken import Broken, Entered, Left


class ForgetsWhatIsDone(Broken):
    noticed_by = "test_a_duplicate_of_a_finished_task_is_dropped"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        outcome = Outcome.OVER if outcome is Outcome.DONE else outcome
        return super().leave(claim, outcome, message)


class NeverForgetsWhatIsDone(Broken):
    noticed_by = "test_a_finished_task_is_forgotten_after_its_time"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, done_ttl=claim.done_ttl * 1_000_000)


class ForgetsLostRuns(Broken):
    noticed_by = "test_a_replayed_task_starts_with_no_lost_runs"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        return replace(super()._load(operation, now), lost=())


class GrantsOneTooMany(Broken):
    noticed_by = "test_a_newcomer_does_not_overtake_those_beyond_the_window"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, limit=claim.limit + 1)


class GivesAllTheSameSlot(Broken):
    noticed_by = "test_a_kept_message_is_not_in_the_way_where_there_is_room"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Run):
            return replace(reply, verdict=replace(reply.verdict, slot=0))
        return reply


class LetsReadersJoinAWriter(Broken):
    noticed_by = "test_a_reader_does_not_join_a_writer"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        if operation.claim.mode is Mode.SHARED:
            return replace(state, holders=tuple(h for h in state.holders if h.mode is Mode.SHARED))
        return state


class LetsNewcomersOvertakeACall(Broken):
    noticed_by = "test_a_newcomer_does_not_overtake_those_beyond_the_window"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        return replace(
            state, grants=tuple(g for g in state.grants if g.task == operation.claim.task)
        )


class WakesNobody(Broken):
    noticed_by = "test_a_lost_run_is_not_counted_against_a_task_that_finished_since"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        return replace(super().leave(claim, outcome, message), wakes=())


class WakesNobodyWhenItRefuses(Broken):
    noticed_by = "test_a_kept_message_makes_no_room"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        return replace(super().enter(claim, message), wakes=())


class KeepsTheHolderToItself(Broken):
    noticed_by = "test_the_queue_says_who_has_the_key"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        return replace(reply, verdict=Park()) if isinstance(reply.verdict, Park) else reply


class WakesTwo(Broken):
    noticed_by = "test_a_lost_run_is_not_counted_against_a_task_that_finished_since"

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None = None) -> Left:
        reply = super().leave(claim, outcome, message)
        waiting = self._keys.get(claim.key, _Key()).state.waiting
        if reply.wakes and waiting and waiting[0].parked:
            return replace(reply, wakes=(*reply.wakes, Wake(claim.key, waiting[0].task, b"")))
        return reply


class NeverCallsAgain(Broken):
    noticed_by = "test_a_dead_message_whose_task_waits_again_is_forgotten"

    def reap(self, key: str) -> Reply[None]:
        if any(g.due <= self._now() for g in self._keys.get(key, _Key()).state.grants):
            return Reply(None)
        return super().reap(key)


class DropsTheOnlyOtherCopy(Broken):
    noticed_by = "test_a_lost_run_does_not_make_a_publisher_run"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        if any(h.task == claim.task and h.nonce != claim.nonce for h in self.holders(claim.key)):
            return Reply(Drop(Reason.WAITING))
        return super().enter(claim, message)


class TakesARedeliveryForTheOwner(Broken):
    noticed_by = "test_another_delivery_of_a_running_task_is_the_same"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if isinstance(reply.verdict, Same):
            return Reply(Run(reply.verdict.holder.slot, reply.verdict.holder.token))
        return reply


class ForgetsPlaces(Broken):
    noticed_by = "test_a_place_is_kept_before_messages_that_came_later"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, wait=WaitMode.NOT) if claim.wait is WaitMode.PLACE else claim


class ForgetsSinceWhenAPlaceWaits(Broken):
    noticed_by = "test_who_asks_again_has_waited_since_the_first_time"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if claim.wait is WaitMode.PLACE and isinstance(reply.verdict, Busy):
            found = self._keys[claim.key]
            entries = (
                replace(entry, arrived=self._now()) if entry.task == claim.task else entry
                for entry in found.state.waiting
            )
            found.state = replace(found.state, waiting=tuple(entries))
        return reply


class LosesTheMessage(Broken):
    noticed_by = "test_a_dead_message_whose_task_waits_again_is_forgotten"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        return super().enter(claim, None)


class TakesTheMessageForText(Broken):
    noticed_by = "test_a_kept_message_is_returned_byte_by_byte"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        text = (message or b"").decode(errors="replace")
        return super().enter(claim, text.encode())


class FoldsTheCaseOfKeys(Broken):
    noticed_by = "test_keys_of_odd_characters_do_not_meet"

    def altered(self, claim: Claim) -> Claim:
        return replace(claim, key=claim.key.lower())


class IgnoresThePrefix(Broken):
    noticed_by = "test_two_prefixes_do_not_meet"

    shared: ClassVar[dict[str, Any]] = {}

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(options)
        self._keys = self.shared


class LosesEverythingOnClose(Broken):
    noticed_by = "test_a_store_that_was_closed_can_be_used_again"

    def close(self) -> None:
        self._keys.clear()


class ReadsBeforeItLocks(Broken):
    noticed_by = "test_forty_threads_lose_no_update_of_an_unlocked_counter"

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        operation = Enter(claim, message)
        with self._mutex:
            now, state = self._now(), self._load(operation, self._now())
            self._token += 1
            token = self._token
        time.sleep(0.001)  # as long as a round trip takes
        with self._mutex:
            return self._commit(operation, state, operation.apply(state, now, token), now)
