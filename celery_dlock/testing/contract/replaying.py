"""Replayed: a dead message waits again, and what is remembered of its task is forgotten."""

from __future__ import annotations

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.state import Drop, Mode, Outcome, Reason
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.burying import UNREADABLE, call_in_vain, die, lose_runs
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    PLACE,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)


class Replaying(StoreUnderTest):
    def test_a_replayed_message_is_called_as_it_was(
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
        call_in_vain(backend, clock)
        backend.bury("key", "b", UNREADABLE)
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
