"""What becomes a dead letter, and what replaying and discarding one does."""

from __future__ import annotations

import pytest

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Cause, Dead, Drop, Mode, NotHeld, Outcome, Reason
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from celery_dlock.stores.base import LockBackend, Swept, Wake
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    DAY,
    PLACE,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock
from tests.contract.storage.dead_letters import LAST_CALL, UNREADABLE, die, names, wake_in_vain

AN_HOUR = 3_600_000_000  # in the microseconds of an operation


def lose_runs(backend: LockBackend, message: bytes = b"m") -> None:
    """Task a is abandoned as often as it may be."""
    for n in range(MAX_LOST_RUNS):
        mine = claim("a", str(n), wait=QUEUE, keep=True)
        running(backend.enter(mine, message))
        backend.leave(mine, Outcome.ABANDONED)


class DeadLetters(StoreUnderTest):
    """A message that nobody can use is out of the queue, and stays for a person to look at."""

    @pytest.mark.parametrize("keep", [True, False])
    def test_nobody_is_dead_lettered_because_answers_were_lost(
        self, backend: LockBackend, keep: bool
    ) -> None:
        for n in range(MAX_LOST_RUNS + 1):
            mine = claim("a", str(n), wait=QUEUE, keep=keep)
            running(backend.enter(mine, b"m"))
            backend.leave(mine, Outcome.UNUSED)

        running(backend.enter(claim("a", "last", wait=QUEUE, keep=keep), b"m"))
        assert backend.dead() == []

    def test_a_message_is_dead_lettered_after_so_many_wakes_and_the_next_is_woken(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b", "c")
        backend.leave(claim("a"), Outcome.DONE)

        for _ in range(WAKES_BEFORE_DEAD - 1):
            reply = backend.dead_letter("key", "b", UNREADABLE)
            assert (reply.verdict, reply.wakes, backend.dead()) == (False, (), [])
            clock.advance(LAST_CALL)
            assert woken(backend.reap("key")) == ["b"]
        reply = backend.dead_letter("key", "b", UNREADABLE)

        assert (reply.verdict, woken(reply)) == (True, ["c"])
        assert names(backend) == [("key", "b")]
        assert backend.parked(["b"]) == []

    def test_a_message_is_dead_lettered_once(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a")
        before = backend.dead()
        clock.advance(1)

        assert backend.dead_letter("key", "a", Cause.UNKNOWN_TASK).verdict is False

        assert backend.dead() == before

    def test_who_waits_runs_or_comes_by_itself_is_not_dead_lettered(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("runs", wait=QUEUE, keep=True, ttl=DAY), b"m"))
        backend.enter(claim("place", wait=PLACE, patience=DAY))
        park(backend, "waits")
        wake_in_vain(backend, clock)

        for task in ("runs", "place", "waits", "unknown"):
            assert backend.dead_letter("key", task, UNREADABLE).verdict is False

        assert backend.dead() == []
        assert [e.task for e in backend.peek("key").waiting] == ["runs", "place", "waits"]

    def test_a_task_whose_runs_are_lost_again_and_again_is_dead_lettered_with_its_message(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        lose_runs(backend, ANY_BYTES)
        park(backend, "b")

        reply = backend.enter(claim("a", "once more", wait=QUEUE, keep=True), ANY_BYTES)

        assert (reply.verdict, woken(reply)) == (Drop(Reason.DEAD), ["b"])
        (letter,) = backend.dead()
        unchanged = letter.message == ANY_BYTES
        assert unchanged
        assert letter.dead == Dead("a", Mode.EXCLUSIVE, 1, Cause.RUNS_LOST, clock())
        assert backend.parked(["a"]) == []

    def test_a_task_that_never_left_its_message_is_dead_lettered_with_the_delivered_one(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for n in range(MAX_LOST_RUNS):
            running(backend.enter(claim("a", str(n), wait=QUEUE), b"m"))
            clock.advance(10)

        assert backend.enter(claim("a", "x", wait=QUEUE), b"last").verdict == Drop(Reason.DEAD)

        assert [letter.message for letter in backend.dead()] == [b"last"]

    def test_the_dead_are_in_nobodys_way(self, backend: LockBackend, clock: ManualClock) -> None:
        die(backend, clock, "a")
        clock.advance(LAST_CALL)

        assert backend.sweep() == Swept((), None)
        state = backend.peek("key")
        assert (state.grants, state.waiting, state.parked) == ((), (), 0)
        running(backend.enter(claim("b")))


class Replaying(StoreUnderTest):
    """Replayed: a dead message waits again, and what is remembered of its task is forgotten."""

    def test_a_replayed_message_is_woken_as_it_was(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a", message=ANY_BYTES)

        reply = backend.replay("key", "a")

        unchanged = reply.wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged
        assert (reply.verdict, backend.dead()) == (True, [])
        running(backend.enter(claim("a", wait=QUEUE), b"x"))

    def test_a_replayed_message_waits_behind_the_others(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a", message=b"first")
        running(backend.enter(claim("b")))
        park(backend, "c")

        reply = backend.replay("key", "a")

        assert (reply.verdict, reply.wakes) == (True, ())
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["c"]
        running(backend.enter(claim("c", wait=QUEUE)))
        assert backend.leave(claim("c"), Outcome.DONE).wakes == (Wake("key", "a", b"first"),)

    def test_a_replayed_message_keeps_its_mode_and_limit(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("holder")))
        backend.enter(claim("b", wait=QUEUE, mode=SHARED, limit=7), b"b")
        backend.leave(claim("holder"), Outcome.DONE)
        wake_in_vain(backend, clock)
        backend.dead_letter("key", "b", UNREADABLE)
        running(backend.enter(claim("w")))

        backend.replay("key", "b")

        (entry,) = backend.peek("key").waiting
        assert (entry.mode, entry.limit, entry.gives_up) == (Mode.SHARED, 7, None)

    def test_a_replayed_task_starts_with_no_lost_runs(self, backend: LockBackend) -> None:
        lose_runs(backend)
        backend.enter(claim("a", "once more", wait=QUEUE), b"m")

        assert woken(backend.replay("key", "a")) == ["a"]

        lose_runs(backend)
        assert backend.enter(claim("a", "x", wait=QUEUE), b"m").verdict == Drop(Reason.DEAD)

    def test_replaying_what_is_done_lets_it_run_again(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        backend.leave(claim("a"), Outcome.DONE)
        assert backend.enter(claim("a", "copy")).verdict == Drop(Reason.DONE)

        reply = backend.replay("key", "a")

        assert (reply.verdict, reply.wakes) == (False, ())
        running(backend.enter(claim("a", "copy")))
        backend.leave(claim("a", "copy"), Outcome.DONE)
        assert backend.enter(claim("a", "another")).verdict == Drop(Reason.DONE)

    def test_a_dead_message_whose_task_has_run_by_a_copy_is_forgotten(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a")
        running(backend.enter(claim("a", "copy")))
        backend.leave(claim("a", "copy"), Outcome.DONE)

        reply = backend.replay("key", "a")

        assert (reply.verdict, reply.wakes, backend.dead()) == (False, (), [])
        assert backend.enter(claim("a", "another")).verdict == Drop(Reason.DONE)

    def test_a_task_whose_runs_were_lost_is_replayed_although_the_last_of_them_has_ended(
        self, backend: LockBackend
    ) -> None:
        lose_runs(backend)
        backend.enter(claim("a", "once more", wait=QUEUE), b"m")
        late = claim("a", str(MAX_LOST_RUNS - 1))
        assert isinstance(backend.leave(late, Outcome.DONE).verdict, NotHeld)
        assert backend.enter(claim("a", "copy")).verdict == Drop(Reason.DONE)

        reply = backend.replay("key", "a")

        assert (reply.verdict, woken(reply), backend.dead()) == (True, ["a"], [])
        running(backend.enter(claim("a", "again", wait=QUEUE)))

    def test_replaying_who_waits_runs_or_is_unknown_changes_nothing(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")
        before = backend.peek("key")

        for task in ("a", "b", "unknown"):
            reply = backend.replay("key", task)
            assert (reply.verdict, reply.wakes) == (False, ())

        assert backend.peek("key") == before

    def test_a_dead_message_whose_task_waits_again_is_forgotten(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a", message=b"dead")
        running(backend.enter(claim("holder")))
        backend.enter(claim("a", "redelivered", wait=QUEUE), b"redelivered")

        assert backend.replay("key", "a").verdict is True

        assert backend.dead() == []
        assert backend.peek("key").parked == 1
        reply = backend.leave(claim("holder"), Outcome.DONE)
        assert reply.wakes == (Wake("key", "a", b"redelivered"),)

    def test_a_replayed_message_takes_over_the_place_of_its_task(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a", message=b"dead")
        running(backend.enter(claim("holder")))
        backend.enter(claim("a", "another", wait=PLACE))

        backend.replay("key", "a")

        state = backend.peek("key")
        assert ([entry.task for entry in state.waiting], state.parked) == (["a"], 1)
        assert backend.leave(claim("holder"), Outcome.DONE).wakes == (Wake("key", "a", b"dead"),)
        running(backend.enter(claim("a", wait=QUEUE)))
        assert backend.leave(claim("a"), Outcome.DONE).wakes == ()


class Discarding(StoreUnderTest):
    """Discarded: a dead message is gone for good, and no duplicate of it runs."""

    def test_a_discarded_message_is_gone_and_its_task_counts_as_done(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a")
        die(backend, clock, "b")

        reply = backend.discard("key", "a", AN_HOUR)

        assert (reply.verdict, reply.wakes, names(backend)) == (True, (), [("key", "b")])
        assert backend.discard("key", "a", AN_HOUR).verdict is False
        assert backend.replay("key", "b").verdict is True
        assert backend.enter(claim("a", "copy", wait=QUEUE), b"m").verdict == Drop(Reason.DONE)

    def test_a_discarded_task_starts_with_no_lost_runs_once_it_is_forgotten(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        lose_runs(backend)
        backend.enter(claim("a", "once more", wait=QUEUE), b"m")

        assert backend.discard("key", "a", 0).verdict is True

        assert (backend.dead(), backend.peek("key").parked) == ([], 0)
        running(backend.enter(claim("a", "published again", wait=QUEUE), b"m"))

    def test_another_message_of_a_discarded_task_stays(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a", message=b"dead")
        running(backend.enter(claim("holder")))
        backend.enter(claim("a", "redelivered", wait=QUEUE), b"redelivered")

        assert backend.discard("key", "a", AN_HOUR).verdict is True

        assert backend.dead() == []
        reply = backend.leave(claim("holder"), Outcome.DONE)
        assert reply.wakes == (Wake("key", "a", b"redelivered"),)
        running(backend.enter(claim("a", wait=QUEUE)))

    def test_discarding_what_is_not_dead_changes_nothing(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")
        before = backend.peek("key")

        for task in ("a", "b", "unknown"):
            reply = backend.discard("key", task, AN_HOUR)
            assert (reply.verdict, reply.wakes) == (False, ())

        assert backend.peek("key") == before
        backend.leave(claim("a"), Outcome.OVER)
        running(backend.enter(claim("b", wait=QUEUE)))
