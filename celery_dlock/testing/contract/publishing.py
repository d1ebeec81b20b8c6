"""Order as published: who publishes leaves the message in the queue, and never holds the key."""

from __future__ import annotations

from typing import Any

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.state import Busy, Drop, Ending, Outcome, Park, Reason
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    ENQUEUE,
    PLACE,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)


def publish(backend: LockBackend, *tasks: str, nonce: str = "p", **others: Any) -> list[str]:
    """Publish each of *tasks*, its name its message; who was called meanwhile."""
    called: list[str] = []
    for task in tasks:
        reply = backend.enter(claim(task, nonce, wait=ENQUEUE, **others), task.encode())
        assert reply.verdict == Park()
        called += woken(reply)
    return called


class Publishing(StoreUnderTest):
    def test_a_published_message_is_called_at_once_on_a_free_key(
        self, backend: LockBackend
    ) -> None:
        reply = backend.enter(claim("a", "p", wait=ENQUEUE), ANY_BYTES)

        unchanged = reply.wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged
        assert reply.verdict == Park()
        assert backend.peek("key").holders == ()
        running(backend.enter(claim("a", wait=QUEUE), b"x"))

    def test_published_messages_are_called_in_order_one_at_a_time(
        self, backend: LockBackend
    ) -> None:
        assert publish(backend, "a", "b", "c") == ["a"]

        for task, following in (("a", ["b"]), ("b", ["c"]), ("c", [])):
            running(backend.enter(claim(task, wait=QUEUE), b"x"))
            assert woken(backend.leave(claim(task), Outcome.DONE)) == following

    def test_a_published_message_waits_behind_a_holder_and_behind_who_waits(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b")

        assert publish(backend, "c") == []

        assert woken(backend.leave(claim("a"), Outcome.DONE)) == ["b"]

    def test_a_call_of_a_published_message_is_repeated_by_a_sweep(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        publish(backend, "a")
        assert backend.sweep().next_in == 5.0
        clock.advance(5)

        assert backend.sweep().wakes == (Wake("key", "a", b"a"),)

    def test_as_many_published_messages_are_called_as_there_are_slots(
        self, backend: LockBackend
    ) -> None:
        assert publish(backend, "a", "b", "c", limit=2) == ["a", "b"]

    def test_published_readers_are_called_together(self, backend: LockBackend) -> None:
        assert publish(backend, "r", "s", mode=SHARED) == ["r", "s"]
        assert publish(backend, "w") == []

    def test_a_message_that_is_published_twice_is_there_once(self, backend: LockBackend) -> None:
        publish(backend, "a", "b")

        for task in "ab":
            again = claim(task, "again", wait=ENQUEUE)
            reply = backend.enter(again, b"again")
            assert (reply.verdict, reply.wakes) == (Drop(Reason.WAITING), ())

        running(backend.enter(claim("a", wait=QUEUE), b"x"))
        assert backend.leave(claim("a"), Outcome.DONE).wakes == (Wake("key", "b", b"b"),)

    def test_a_finished_task_is_not_published_again(self, backend: LockBackend) -> None:
        publish(backend, "a")
        running(backend.enter(claim("a", wait=QUEUE), b"x"))
        backend.leave(claim("a"), Outcome.DONE)

        reply = backend.enter(claim("a", "again", wait=ENQUEUE), b"again")

        assert (reply.verdict, reply.wakes) == (Drop(Reason.DONE), ())

    def test_a_running_task_that_is_published_has_a_shadow(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", wait=QUEUE), b"x"))
        assert publish(backend, "a") == []
        clock.advance(10)

        assert backend.sweep().wakes == (Wake("key", "a", b"a"),)

    def test_a_lost_run_does_not_make_a_publisher_run(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))
        clock.advance(10)

        assert publish(backend, "a") == ["a"]
        assert backend.peek("key").holders == ()

    def test_a_published_message_takes_over_a_place_and_what_is_reserved_for_it(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a")))
        for task in "bc":
            backend.enter(claim(task, wait=PLACE))
        park(backend, "d")

        assert publish(backend, "c") == []
        backend.leave(claim("a"), Outcome.DONE)  # the key is reserved for b's place
        reply = backend.enter(claim("b", "p", wait=ENQUEUE), b"b")

        assert (reply.verdict, reply.wakes) == (Park(), (Wake("key", "b", b"b"),))
        running(backend.enter(claim("b", wait=QUEUE), b"x"))
        assert woken(backend.leave(claim("b"), Outcome.DONE)) == ["c"]

    def test_a_full_queue_takes_no_published_message(self, backend: LockBackend) -> None:
        publish(backend, "a", "b", max_waiting=1)

        refused = backend.enter(claim("c", "p", wait=ENQUEUE, max_waiting=1), b"c").verdict

        assert refused == Busy(None, 0, 1, full=True)
        running(backend.enter(claim("a", wait=QUEUE), b"x"))
        backend.leave(claim("a"), Outcome.DONE)
        publish(backend, "c", max_waiting=1)

    def test_the_first_message_makes_room_for_a_published_one(self, backend: LockBackend) -> None:
        publish(backend, "a", "b")

        newest = claim("c", "p", wait=ENQUEUE, max_waiting=1, drop_oldest=True)
        reply = backend.enter(newest, b"c")

        assert reply.verdict == Park()
        assert reply.wakes == (Wake("key", "b", b"b", Ending.DROPPED),)

    def test_a_published_message_gives_up_as_others_do(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        publish(backend, "b", gives_up=60)
        assert backend.sweep().next_in == 60.0
        clock.advance(60)

        assert backend.sweep().wakes == (Wake("key", "b", b"b", Ending.TIMED_OUT),)
