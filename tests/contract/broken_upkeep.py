"""Stores with one known defect each in how they revoke, dead-lettered and replay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import Operation, Replay
from celery_dlock.core.state import Cause, Claim, Drop, KeyState, Outcome, Reason, task_id_of
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from celery_dlock.stores.base import BackendOptions, DeadMessage, Reply
from celery_dlock.stores.sql.sqlite import SqliteBackend
from tests.contract.broken import Broken, Entered


class DeletesWhatIsRevoked(Broken):
    """Takes the message out of the queue, so that its result is waited for in vain."""

    noticed_by = "test_a_revoked_task_is_woken_again_until_somebody_ends_it"

    def cancel(self, key: str, task: str) -> Reply[bool]:
        reply = super().cancel(key, task)
        if reply.verdict:
            super().leave(Claim(key, task, "", 0), Outcome.OVER)
        return replace(reply, wakes=())


class RevokesWhoRuns(Broken):
    noticed_by = "test_who_runs_and_is_kept_is_not_revoked_by_the_store"

    def cancel(self, key: str, task: str) -> Reply[bool]:
        for holder in self.holders(key):
            if holder.task == task:
                super().leave(Claim(key, task, holder.nonce, 0), Outcome.OVER)
                return Reply(True)
        return super().cancel(key, task)


class RevokesTheMessageOfWhoRuns(Broken):
    noticed_by = "test_who_runs_and_is_kept_is_not_revoked_by_the_store"

    def cancel(self, key: str, task: str) -> Reply[bool]:
        found = self._keys.get(key)
        if not found:
            return super().cancel(key, task)
        holders = found.state.holders
        found.state = replace(found.state, holders=tuple(h for h in holders if h.task != task))
        reply = super().cancel(key, task)
        if key in self._keys:
            self._keys[key].state = replace(self._keys[key].state, holders=holders)
        return reply


class DoesNotRevokeWhoWasCalled(Broken):
    noticed_by = "test_revoking_twice_wakes_once"

    def cancel(self, key: str, task: str) -> Reply[bool]:
        found = self._keys.get(key)
        if found and task in [grant.task for grant in found.state.grants]:
            return Reply(False)
        return super().cancel(key, task)


class RevokesPlaces(Broken):
    noticed_by = "test_a_place_is_not_revoked"

    def cancel(self, key: str, task: str) -> Reply[bool]:
        found = self._keys.get(key)
        if found and task in [w.task for w in found.state.waiting if not w.parked]:
            super().leave(Claim(key, task, "", 0), Outcome.OVER)
            return Reply(True)
        return super().cancel(key, task)


class FindsIdsByTheirBeginning(Broken):
    noticed_by = "test_a_waiting_message_is_found_by_its_task_id_and_no_other_is"

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        return [
            (key, task)
            for key, found in self._keys.items()
            for task in found.messages
            if task.startswith(tuple(task_ids))
        ]


class FindsOneIdAtATime(Broken):
    noticed_by = "test_every_message_in_a_long_queue_is_found"

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        return super().parked(sorted(task_ids)[:1])


class FindsPlacesToo(Broken):
    noticed_by = "test_a_place_is_not_found_among_the_messages"

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        places = [
            (key, entry.task)
            for key, found in self._keys.items()
            for entry in found.state.waiting
            if not entry.parked and task_id_of(entry.task) in task_ids
        ]
        return super().parked(task_ids) + places


class DoesNotFindWhoWasCalled(Broken):
    noticed_by = "test_a_message_is_found_until_somebody_has_answered_its_wake"

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        return [
            (key, task)
            for key, task in super().parked(task_ids)
            if task not in [grant.task for grant in self._keys[key].state.grants]
        ]


class TellsMessagesOfThoseWhoWaitOnly(Broken):
    noticed_by = "test_the_message_of_who_waits_or_was_woken_is_told_and_of_nobody_else"

    def message(self, key: str, task: str) -> bytes | None:
        found = self._keys.get(key)
        waits = found and task in [entry.task for entry in found.state.waiting]
        return super().message(key, task) if waits else None


class DeadLettersAtTheFirstCall(Broken):
    noticed_by = "test_a_message_is_dead_lettered_after_so_many_wakes_and_the_next_is_woken"

    def dead_letter(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        if found := self._keys.get(key):
            hopeless = tuple(
                replace(g, woken=WAKES_BEFORE_DEAD) if g.task == task else g
                for g in found.state.grants
            )
            found.state = replace(found.state, grants=hopeless)
        return super().dead_letter(key, task, cause)


class DeadLettersWithoutTheMessage(Broken):
    noticed_by = "test_a_task_that_never_left_its_message_is_dead_lettered_with_the_delivered_one"

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        return [replace(letter, message=b"") for letter in super().dead(limit)]


class PutsNothingAside(Broken):
    noticed_by = "test_a_dead_message_whose_task_waits_again_is_forgotten"

    def dead_letter(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        return Reply(False)


class ForgetsTheDeadAfterADay(Broken):
    noticed_by = "test_the_dead_stay"

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        day = 86_400_000_000
        return [b for b in super().dead(limit) if b.dead.at + day > self._now()]


class ForgetsTheDeadWhenTheirTaskIsLost(Broken):
    """Drops a message whose runs were lost too often, and tells nobody."""

    noticed_by = "test_a_task_that_never_left_its_message_is_dead_lettered_with_the_delivered_one"

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        return [b for b in super().dead(limit) if b.dead.cause is not Cause.RUNS_LOST]


class RunsWhatKills(Broken):
    """Never puts aside a task whose runs are lost, however many."""

    noticed_by = "test_a_replayed_task_starts_with_no_lost_runs"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        return replace(
            state, lost=tuple((task, min(count, MAX_LOST_RUNS - 1)) for task, count in state.lost)
        )


class DeadLettersWhatSurvived(Broken):
    """Counts the lost runs of a task's whole life, a replay included."""

    noticed_by = "test_a_replayed_task_starts_with_no_lost_runs"

    def replay(self, key: str, task: str) -> Reply[bool]:
        before = self._keys[key].past.get(task) if key in self._keys else None
        count = before.lost if before else 0
        reply = super().replay(key, task)
        if before and count and key in self._keys:
            before.lost, before.lost_until = count, self._now() + 86_400_000_000
            self._keys[key].past[task] = before
        return reply


class ReplaysWhatHasRun(Broken):
    """A message that is dead, and whose copy has run, runs once more."""

    noticed_by = "test_a_dead_message_whose_task_has_run_by_a_copy_is_forgotten"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        return replace(state, done=frozenset()) if isinstance(operation, Replay) else state


class ReplaysNothingThatHasEnded(Broken):
    """A run that was lost and ends all the same has its dead letter thrown away."""

    noticed_by = "test_a_task_whose_runs_were_lost_is_replayed_although_the_last_of_them_has_ended"

    def _load(self, operation: Operation[object], now: int) -> KeyState:
        state = super()._load(operation, now)
        dead = tuple(replace(letter, cause=Cause.UNREADABLE) for letter in state.dead)
        return replace(state, dead=dead)


class ForgetsTheMessageAtReplay(Broken):
    noticed_by = "test_a_replayed_message_is_woken_as_it_was"

    def replay(self, key: str, task: str) -> Reply[bool]:
        if was := self._dead.get((key, task)):
            self._dead[key, task] = replace(was, message=b"")
        return super().replay(key, task)


class ReplaysWithoutACall(Broken):
    noticed_by = "test_a_replayed_message_is_woken_as_it_was"

    def replay(self, key: str, task: str) -> Reply[bool]:
        return replace(super().replay(key, task), wakes=())


class ReplaysAndStaysDead(Broken):
    noticed_by = "test_a_dead_message_whose_task_waits_again_is_forgotten"

    def replay(self, key: str, task: str) -> Reply[bool]:
        was = self._dead.get((key, task))
        reply = super().replay(key, task)
        if was:
            self._dead[key, task] = was
        return reply


class ReplaysBesideAnotherCopy(Broken):
    """Puts the dead message in the place of the one that waits."""

    noticed_by = "test_a_dead_message_whose_task_waits_again_is_forgotten"

    def replay(self, key: str, task: str) -> Reply[bool]:
        was = self._dead.get((key, task))
        reply = super().replay(key, task)
        if was and key in self._keys and task in self._keys[key].messages:
            self._keys[key].messages[task] = was.message
        return reply


class RemembersWhatIsReplayed(Broken):
    """Replays the dead only: what is done stays done."""

    noticed_by = "test_replaying_what_is_done_lets_it_run_again"

    def replay(self, key: str, task: str) -> Reply[bool]:
        if (key, task) not in self._dead:
            return Reply(False)
        return super().replay(key, task)


class DiscardsAndStaysDead(Broken):
    noticed_by = "test_a_discarded_message_is_gone_and_its_task_counts_as_done"

    def discard(self, key: str, task: str, done_ttl: int) -> Reply[bool]:
        was = self._dead.get((key, task))
        reply = super().discard(key, task, done_ttl)
        if was:
            self._dead[key, task] = was
        return reply


class DiscardsAndLetsACopyRun(Broken):
    noticed_by = "test_a_discarded_message_is_gone_and_its_task_counts_as_done"

    def discard(self, key: str, task: str, done_ttl: int) -> Reply[bool]:
        return super().discard(key, task, 0)


class DiscardsAnotherMessageToo(Broken):
    """What waits of the same task is done, and never woken."""

    noticed_by = "test_another_message_of_a_discarded_task_stays"

    def discard(self, key: str, task: str, done_ttl: int) -> Reply[bool]:
        self.cancel(key, task)
        return super().discard(key, task, done_ttl)


class DiscardsWhatIsNotDead(Broken):
    noticed_by = "test_discarding_what_is_not_dead_changes_nothing"

    def discard(self, key: str, task: str, done_ttl: int) -> Reply[bool]:
        super().discard(key, task, done_ttl)
        return Reply(True)


class RemembersTheLostRunsOfWhatIsDiscarded(Broken):
    noticed_by = "test_a_discarded_task_starts_with_no_lost_runs_once_it_is_forgotten"

    def discard(self, key: str, task: str, done_ttl: int) -> Reply[bool]:
        before = self._keys[key].past.get(task) if key in self._keys else None
        count = before.lost if before else 0
        reply = super().discard(key, task, done_ttl)
        if before and count and key in self._keys:
            before.lost, before.lost_until = count, self._now() + 86_400_000_000
            self._keys[key].past[task] = before
        return reply


class TellsTheDeadInAnyOrder(Broken):
    noticed_by = "test_the_dead_tell_the_name_of_any_key_and_task"

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        return super().dead(10_000)[::-1][:limit]


class KeepsItsDeadToItself(SqliteBackend):
    """Knows of those only that were dead-lettered through this very object."""

    noticed_by = "test_kept_published_and_dead_messages_survive_the_object_that_left_them"

    def __init__(self, path: Path, options: BackendOptions) -> None:
        super().__init__(path, options)
        self._known: set[tuple[str, str]] = set()

    def enter(self, claim: Claim, message: bytes | None = None) -> Entered:
        reply = super().enter(claim, message)
        if reply.verdict == Drop(Reason.DEAD):
            self._known.add((claim.key, claim.task))
        return reply

    def dead_letter(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        self._known.add((key, task))
        return super().dead_letter(key, task, cause)

    def dead(self, limit: int = 100) -> list[DeadMessage]:
        return [b for b in super().dead(limit) if (b.key, b.dead.task) in self._known]
