"""What ends without having run: it waited too long, had to make room, or was revoked."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from celery_dlock.core.state import WINDOW, Busy, Drop, End, Ending, NotHeld, Outcome, Park, Reason
from celery_dlock.stores.base import LockBackend, Reply, Wake
from celery_dlock.testing.contract.words import (
    PLACE,
    QUEUE,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock

TIMED_OUT = Wake("key", "b", b"message of b", Ending.TIMED_OUT)
DROPPED = Wake("key", "b", b"message of b", Ending.DROPPED)


class Endings(StoreUnderTest):
    """Endings: a message that waited too long, or has to make room, is woken to end, visibly."""

    @pytest.fixture
    def overdue(self, backend: LockBackend, clock: ManualClock) -> LockBackend:
        """Task a holds the key; task b has waited for as long as it would."""
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b", gives_up=60)
        clock.advance(60)
        return backend

    def test_a_message_is_woken_to_end_at_the_instant_when_it_has_waited_for_long_enough(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b", gives_up=60)
        clock.advance(59.999_999)
        assert backend.reap("key").wakes == ()

        clock.advance(0.000_001)

        assert backend.reap("key").wakes == (TIMED_OUT,)
        assert backend.reap("key").wakes == ()

    def test_whatever_happens_to_the_key_ends_who_waited_too_long(
        self, overdue: LockBackend
    ) -> None:
        assert overdue.leave(claim("a"), Outcome.OVER).wakes == (TIMED_OUT,)

        running(overdue.enter(claim("c")))

    def test_one_delivery_brings_an_ending_about(self, overdue: LockBackend) -> None:
        overdue.reap("key")

        assert overdue.enter(claim("b", "one", wait=QUEUE), b"x").verdict == End(Ending.TIMED_OUT)
        assert overdue.enter(claim("b", "two", wait=QUEUE), b"y").verdict == Drop(Reason.WAITING)
        assert overdue.enter(claim("b", "one", wait=QUEUE), b"x").verdict == End(Ending.TIMED_OUT)

    def test_an_ending_is_over_when_its_task_is_done(
        self, overdue: LockBackend, clock: ManualClock
    ) -> None:
        overdue.reap("key")
        overdue.enter(claim("b", "one", wait=QUEUE), b"x")

        assert overdue.leave(claim("b", "one"), Outcome.DONE).verdict == NotHeld(carried=True)

        clock.advance(60)
        assert overdue.reap("key").wakes == ()
        assert overdue.enter(claim("b", "two", wait=QUEUE), b"x").verdict == Drop(Reason.DONE)

    def test_an_ending_that_its_taker_does_not_bring_about_is_woken_again(
        self, overdue: LockBackend, clock: ManualClock
    ) -> None:
        overdue.reap("key")
        overdue.enter(claim("b", "one", wait=QUEUE, ttl=10), b"x")
        clock.advance(9.999_999)
        assert overdue.reap("key").wakes == ()

        clock.advance(0.000_001)

        assert overdue.reap("key").wakes == (TIMED_OUT,)
        assert overdue.enter(claim("b", "two", wait=QUEUE), b"x").verdict == End(Ending.TIMED_OUT)

    def test_an_ending_takes_no_slot(self, overdue: LockBackend) -> None:
        park(overdue, "c")

        assert woken(overdue.leave(claim("a"), Outcome.OVER)) == ["c"]

    def test_the_duplicate_of_a_running_task_is_not_ended(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        backend.enter(claim("a", "copy", wait=QUEUE, gives_up=60), b"copy")
        clock.advance(60)

        assert backend.reap("key").wakes == ()

    def test_a_long_queue_that_waited_too_long_is_ended_window_by_window(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        tasks = [f"task {n}" for n in range(100)]
        park(backend, *tasks, gives_up=60)
        clock.advance(60)

        ended = [wake for _ in range(5) for wake in backend.reap("key").wakes]

        assert [wake.task for wake in ended] == tasks
        assert {wake.ending for wake in ended} == {Ending.TIMED_OUT}
        assert backend.peek("key").parked == 0

    def test_a_full_queue_takes_no_message(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b", "c", max_waiting=2)

        verdict = backend.enter(claim("d", wait=QUEUE, max_waiting=2), b"message").verdict

        assert isinstance(verdict, Busy)
        assert (verdict.full, verdict.parked) == (True, 2)
        assert [entry.task for entry in backend.peek("key").waiting] == ["b", "c"]

    def test_the_first_message_of_a_full_queue_makes_room(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        backend.enter(claim("place", wait=PLACE))
        park(backend, "b", "c", drop_oldest=True)

        newest = claim("d", wait=QUEUE, max_waiting=2, drop_oldest=True)
        reply = backend.enter(newest, b"message of d")

        assert reply.verdict == Park()
        assert reply.wakes == (DROPPED,)
        assert backend.enter(newest, b"message of d").verdict == Drop(Reason.WAITING)
        state = backend.peek("key")
        assert [entry.task for entry in state.waiting] == ["place", "c", "d"]
        assert backend.enter(claim("b", wait=QUEUE), b"x").verdict == End(Ending.DROPPED)
        assert state.parked == 2

    @pytest.mark.parametrize(
        "other", [{}, {"name": "sync"}, {"name": "other", "drop_oldest": True}], ids=str
    )
    def test_nobody_makes_room_for_another_task(
        self, backend: LockBackend, other: dict[str, Any]
    ) -> None:
        newest = partial(claim, wait=QUEUE, max_waiting=1, drop_oldest=True, name="sync")
        running(backend.enter(claim("a")))
        park(backend, "b", "c", **other)

        # It waits beside them, and makes room for a newer one of its own
        assert backend.enter(newest("d"), b"d") == Reply(Park())
        reply = backend.enter(newest("e"), b"e")

        assert reply == Reply(Park(), (Wake("key", "d", b"d", Ending.DROPPED),))
        assert [entry.task for entry in backend.peek("key").waiting] == ["b", "c", "e"]

    def test_a_queue_of_others_that_is_too_long_to_be_seen_is_full(
        self, backend: LockBackend
    ) -> None:
        newest = partial(claim, wait=QUEUE, max_waiting=1, drop_oldest=True, name="sync")
        running(backend.enter(claim("a")))
        park(backend, *(f"b{n}" for n in range(WINDOW)))
        assert backend.enter(newest("c"), b"c").verdict == Park()

        refused = backend.enter(newest("d"), b"d").verdict

        assert isinstance(refused, Busy)
        assert refused.full

    def test_who_is_woken_by_the_same_operation_has_made_room(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")
        clock.advance(10)

        reply = backend.enter(claim("c", wait=QUEUE, max_waiting=1), b"message")

        assert (reply.verdict, woken(reply)) == (Park(), ["b"])

    def test_a_dropped_message_stays_until_somebody_has_brought_it_to_its_end(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b", drop_oldest=True)
        backend.enter(claim("c", wait=QUEUE, max_waiting=1, drop_oldest=True), b"message")

        for wait in (5, 10, 20):
            clock.advance(wait)
            assert backend.reap("key").wakes == (DROPPED,)


REVOKED = Wake("key", "b", b"message of b", Ending.REVOKED)


class Revoking(StoreUnderTest):
    """Revoked: a task whose message waits is found by its id, and woken to its end."""

    @pytest.fixture
    def queue(self, backend: LockBackend) -> LockBackend:
        """Task a holds the key; tasks b and c wait for it."""
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b", "c")
        return backend

    def test_the_message_of_who_waits_or_was_woken_is_told_and_of_nobody_else(
        self, queue: LockBackend
    ) -> None:
        queue.enter(claim("place", wait=PLACE))
        assert queue.message("key", "b") == b"message of b"
        assert queue.message("key", "c") == b"message of c"
        for key, task in (("key", "a"), ("key", "place"), ("key", "x"), ("idle", "b")):
            assert queue.message(key, task) is None

        assert woken(queue.leave(claim("a"), Outcome.DONE)) == ["b"]

        assert queue.message("key", "b") == b"message of b"
        running(queue.enter(claim("b", wait=QUEUE)))
        assert queue.message("key", "b") is None

    def test_a_revoked_task_is_woken_with_its_message_to_end(self, queue: LockBackend) -> None:
        reply = queue.cancel("key", "b")

        assert (reply.verdict, reply.wakes) == (True, (REVOKED,))
        assert queue.enter(claim("b", "call", wait=QUEUE), b"x").verdict == End(Ending.REVOKED)
        assert queue.leave(claim("b", "call"), Outcome.DONE).verdict == NotHeld(carried=True)
        assert queue.enter(claim("b", "late", wait=QUEUE), b"x").verdict == Drop(Reason.DONE)
        assert woken(queue.leave(claim("a"), Outcome.DONE)) == ["c"]

    def test_a_revoked_task_is_woken_again_until_somebody_ends_it(
        self, queue: LockBackend, clock: ManualClock
    ) -> None:
        queue.cancel("key", "b")

        for wait in (5, 10, 20):
            clock.advance(wait)
            assert queue.sweep().wakes == (REVOKED,)

    def test_revoking_twice_wakes_once(self, queue: LockBackend) -> None:
        queue.cancel("key", "b")

        reply = queue.cancel("key", "b")

        assert (reply.verdict, reply.wakes) == (True, ())
        assert queue.peek("key").parked == 1

    def test_who_was_woken_already_ends_when_it_comes_and_the_next_is_woken(
        self, queue: LockBackend
    ) -> None:
        assert woken(queue.leave(claim("a"), Outcome.DONE)) == ["b"]

        reply = queue.cancel("key", "b")

        assert (reply.verdict, woken(reply)) == (True, ["c"])
        assert queue.enter(claim("b", wait=QUEUE), b"x").verdict == End(Ending.REVOKED)
        running(queue.enter(claim("c", wait=QUEUE)))

    def test_who_runs_is_not_revoked_by_the_store(self, queue: LockBackend) -> None:
        assert queue.cancel("key", "a").verdict is False

        running(queue.enter(claim("a", ttl=3600)))

    def test_who_runs_and_is_kept_is_not_revoked_by_the_store(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", wait=QUEUE, keep=True), b"a"))

        reply = backend.cancel("key", "a")

        assert (reply.verdict, reply.wakes) == (False, ())
        clock.advance(10)
        assert backend.sweep().wakes == (Wake("key", "a", b"a"),)

    def test_nothing_happens_to_who_does_not_wait(self, queue: LockBackend) -> None:
        before = queue.peek("key")

        assert queue.cancel("key", "unknown").verdict is False
        assert queue.cancel("other key", "b").verdict is False

        assert queue.peek("key") == before

    def test_a_place_is_not_revoked(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        backend.enter(claim("b", wait=PLACE))

        assert backend.cancel("key", "b").verdict is False

        assert [entry.task for entry in backend.peek("key").waiting] == ["b"]

    def test_who_waits_far_back_is_revoked_too(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        tasks = [f"task {n}" for n in range(2 * WINDOW)]
        park(backend, *tasks)

        assert woken(backend.cancel("key", tasks[-1])) == tasks[-1:]

        assert [entry.task for entry in backend.peek("key").waiting] == tasks[:-1]
        assert backend.peek("key").parked == 2 * WINDOW - 1
