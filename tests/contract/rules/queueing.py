"""Who waits for a key: messages in the queue, places that are kept, and duplicates of what runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_dlock.core.state import Busy, Drop, Ending, Left, Outcome, Park, Reason
from celery_dlock.stores.base import LockBackend, Wake
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
from celery_dlock.testing.project import ManualClock


class QueueingTests(StoreUnderTest):
    """The queue: a message is kept as it came, first come first woken, and a wake reserves."""

    def test_a_free_key_needs_no_queue(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a", wait=QUEUE), b"message"))

        assert backend.leave(claim("a", wait=QUEUE), Outcome.DONE).wakes == ()

    def test_the_queue_says_who_has_the_key(self, backend: LockBackend) -> None:
        backend.enter(replace(claim("a"), name="shop.charge", where="worker:1"))

        for task in "bc":  # the first one, and one that comes where others wait already
            verdict = backend.enter(claim(task, wait=QUEUE), b"message").verdict
            assert isinstance(verdict, Park)
            assert verdict.holder is not None
            assert verdict.holder.who == "shop.charge[a] on worker:1"

    def test_a_wake_reserves_the_key_against_newcomers(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        park(backend, "b")
        backend.leave(claim("a"), Outcome.OVER)

        assert backend.enter(claim("newcomer")).verdict == Busy(None, 0, 0)
        assert backend.enter(claim("queuer", wait=QUEUE), b"m").verdict == Park()

        running(backend.enter(claim("b", wait=QUEUE)))

    def test_a_newcomer_does_not_overtake_who_waits(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "b")
        clock.advance(11)

        reply = backend.enter(claim("newcomer"))

        assert isinstance(reply.verdict, Busy)
        assert woken(reply) == ["b"]

    def test_a_duplicate_of_a_waiting_task_is_dropped_and_the_first_message_stays(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b", "first", wait=QUEUE), b"first")

        reply = backend.enter(claim("b", "second", wait=QUEUE), b"second")

        assert reply.verdict == Drop(Reason.WAITING)
        assert backend.leave(claim("a"), Outcome.OVER).wakes == (Wake("key", "b", b"first"),)

    def test_a_refused_task_is_told_how_many_wait(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        park(backend, "b", "c")

        verdict = backend.enter(claim("d")).verdict

        assert isinstance(verdict, Busy)
        assert verdict.parked == 2

    def test_a_wake_that_nobody_answers_is_repeated_at_growing_distance_for_ever(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b", wait=QUEUE), b"message")
        backend.leave(claim("a"), Outcome.OVER)

        for wait in (5, 10, 20, 40, 80, 160, 320, 600, 600):
            clock.advance(wait - 0.000_001)
            assert backend.reap("key").wakes == ()
            clock.advance(0.000_001)
            assert backend.reap("key").wakes == (Wake("key", "b", b"message"),)

        running(backend.enter(claim("b", wait=QUEUE)))

    def test_a_wake_is_answered_once(self, backend: LockBackend, clock: ManualClock) -> None:
        backend.enter(claim("a"))
        park(backend, "b")
        backend.leave(claim("a"), Outcome.OVER)
        running(backend.enter(claim("b", wait=QUEUE)))

        clock.advance(6)

        assert backend.reap("key").wakes == ()
        assert isinstance(backend.leave(claim("b"), Outcome.OVER).verdict, Left)
        running(backend.enter(claim("c")))

    def test_an_ended_lease_wakes_the_next_when_time_is_let_pass(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "b")
        assert backend.reap("key").wakes == ()
        clock.advance(10)

        assert woken(backend.reap("key")) == ["b"]
        assert backend.reap("key").wakes == ()

    def test_letting_time_pass_on_an_unknown_key_wakes_nobody(self, backend: LockBackend) -> None:
        assert backend.reap("key").wakes == ()

    def test_a_woken_task_that_finds_the_limit_lowered_goes_back_to_the_head(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for task in "ab":
            backend.enter(claim(task, limit=2))
        park(backend, "c", "d", limit=2)
        first = backend.peek("key").waiting[0].arrived
        clock.advance(5)
        assert woken(backend.leave(claim("a", limit=2), Outcome.OVER)) == ["c"]
        assert [turn.arrived for turn in backend.look(["key"])[0].grants] == [first]

        assert backend.enter(claim("c", wait=QUEUE, limit=1), b"new").verdict == Park()

        assert [entry.arrived for entry in backend.peek("key").waiting] == [first, first]
        assert backend.leave(claim("b", limit=2), Outcome.OVER).wakes == (
            Wake("key", "c", b"message of c"),
        )


def publish(backend: LockBackend, *tasks: str, nonce: str = "p", **others: Any) -> list[str]:
    """Publish each of *tasks*, its name its message; who was woken meanwhile."""
    meanwhile: list[str] = []
    for task in tasks:
        reply = backend.enter(claim(task, nonce, wait=ENQUEUE, **others), task.encode())
        assert reply.verdict == Park()
        meanwhile += woken(reply)
    return meanwhile


class Publishing(StoreUnderTest):
    """Order as published: a publisher leaves the message in the queue, and never holds the key."""

    def test_a_published_message_is_woken_at_once_on_a_free_key(self, backend: LockBackend) -> None:
        reply = backend.enter(claim("a", "p", wait=ENQUEUE), ANY_BYTES)

        unchanged = reply.wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged
        assert reply.verdict == Park()
        assert backend.peek("key").holders == ()
        running(backend.enter(claim("a", wait=QUEUE), b"x"))

    def test_published_messages_are_woken_in_order_one_at_a_time(
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

    def test_a_wake_of_a_published_message_is_repeated_by_a_sweep(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        publish(backend, "a")
        assert backend.sweep().next_in == 5.0
        clock.advance(5)

        assert backend.sweep().wakes == (Wake("key", "a", b"a"),)

    def test_as_many_published_messages_are_woken_as_there_are_slots(
        self, backend: LockBackend
    ) -> None:
        assert publish(backend, "a", "b", "c", limit=2) == ["a", "b"]

    def test_published_readers_are_woken_together(self, backend: LockBackend) -> None:
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
        publish(backend, "a", "b", drop_oldest=True)

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


class Places(StoreUnderTest):
    """Places: a task that comes back by itself keeps its rank, for a while, and blocks nobody."""

    def test_a_task_that_leaves_nothing_behind_is_not_in_the_queue(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b"))

        assert backend.peek("key").waiting == ()

    def test_a_place_is_kept_before_messages_that_came_later(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        assert isinstance(backend.enter(claim("place", wait=PLACE)).verdict, Busy)
        park(backend, "parked")

        assert backend.leave(claim("a"), Outcome.OVER).wakes == ()

        assert isinstance(backend.enter(claim("newcomer")).verdict, Busy)
        running(backend.enter(claim("place", wait=PLACE)))
        assert woken(backend.leave(claim("place"), Outcome.OVER)) == ["parked"]

    def test_a_place_does_not_overtake_messages_that_came_before(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "parked")
        backend.enter(claim("place", wait=PLACE))

        assert woken(backend.leave(claim("a"), Outcome.OVER)) == ["parked"]

        assert isinstance(backend.enter(claim("place", wait=PLACE)).verdict, Busy)

    def test_a_place_expires_when_its_task_does_not_come_back(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", ttl=60))
        backend.enter(claim("place", wait=PLACE))
        park(backend, "parked")
        clock.advance(30)

        assert woken(backend.leave(claim("a"), Outcome.OVER)) == ["parked"]

    def test_coming_back_keeps_the_rank_and_starts_the_patience_anew(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", ttl=60))
        backend.enter(claim("place", wait=PLACE))
        park(backend, "parked")
        clock.advance(20)
        backend.enter(claim("place", wait=PLACE))
        clock.advance(20)

        assert backend.leave(claim("a"), Outcome.OVER).wakes == ()

        running(backend.enter(claim("place", wait=PLACE)))

    def test_who_asks_again_has_waited_since_the_first_time(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a", ttl=60))
        backend.enter(claim("place", wait=PLACE))
        (first,) = (entry.arrived for entry in backend.peek("key").waiting)

        for nonce in ("second", "third"):
            clock.advance(20)
            backend.enter(claim("place", nonce, wait=PLACE))
        assert [entry.arrived for entry in backend.peek("key").waiting] == [first]

        # Also when its turn has come, and when it leaves its message from now on
        park(backend, "parked")
        backend.enter(claim("place", "fourth", wait=QUEUE), b"message")
        assert backend.look(["key"])[0].waiting[0].arrived == first
        backend.leave(claim("a"), Outcome.OVER)
        assert [turn.arrived for turn in backend.look(["key"])[0].grants] == [first]

    def test_a_turn_kept_for_a_place_goes_on_to_the_next_when_its_patience_is_over(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("place", wait=PLACE))
        park(backend, "parked")
        backend.leave(claim("a"), Outcome.OVER)

        clock.advance(29)
        assert backend.reap("key").wakes == ()
        clock.advance(1)
        assert woken(backend.reap("key")) == ["parked"]

    def test_places_alone_reserve_nothing(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        for task in ("first", "second"):
            backend.enter(claim(task, wait=PLACE))
        backend.leave(claim("a"), Outcome.OVER)

        running(backend.enter(claim("newcomer")))

    def test_a_task_that_runs_has_no_place_any_more(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b", wait=PLACE))
        backend.leave(claim("a"), Outcome.OVER)
        running(backend.enter(claim("b", wait=PLACE)))

        assert backend.peek("key").waiting == ()

    def test_a_place_turns_into_a_message_at_the_same_rank(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        backend.enter(claim("b", wait=PLACE))
        park(backend, "c")

        assert backend.enter(claim("b", wait=QUEUE), b"now parked").verdict == Park()

        assert backend.leave(claim("a"), Outcome.OVER).wakes == (Wake("key", "b", b"now parked"),)


FIRST = claim("a", "first", wait=QUEUE)
SECOND = claim("a", "second", wait=QUEUE)


class Shadows(StoreUnderTest):
    """A second delivery of a task that runs: it waits as its shadow, and never runs beside it.

    It may be the only one that survives the first one's death, so it must not be acknowledged
    away; and it must be gone when the first one ends well.
    """

    @pytest.fixture
    def shadowed(self, backend: LockBackend) -> LockBackend:
        """Task a runs and has a shadow; task b waits behind it."""
        running(backend.enter(FIRST, b"first"))
        park(backend, "b")
        assert backend.enter(SECOND, b"second").verdict == Park()
        return backend

    @pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.OVER])
    def test_a_shadow_goes_when_the_task_is_through(
        self, shadowed: LockBackend, outcome: Outcome
    ) -> None:
        assert woken(shadowed.leave(FIRST, outcome)) == ["b"]

        running(shadowed.enter(claim("b", wait=QUEUE)))
        assert shadowed.leave(claim("b"), Outcome.DONE).wakes == ()

    @pytest.mark.parametrize("outcome", [Outcome.ABANDONED, Outcome.REPEAT])
    def test_a_shadow_is_woken_first_when_the_task_did_not_get_through(
        self, shadowed: LockBackend, outcome: Outcome
    ) -> None:
        reply = shadowed.leave(FIRST, outcome, b"repeat")

        assert reply.verdict == Left(carried=True)
        assert reply.wakes == (Wake("key", "a", b"second"),)

    def test_a_shadow_is_woken_first_when_the_lease_has_ended(
        self, shadowed: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(10)

        assert woken(shadowed.reap("key")) == ["a"]

        running(shadowed.enter(SECOND))

    def test_a_shadow_is_not_woken_while_its_task_runs(
        self, shadowed: LockBackend, clock: ManualClock
    ) -> None:
        clock.advance(9)
        assert shadowed.reap("key").wakes == ()

        assert shadowed.enter(claim("a", "third", wait=QUEUE), b"third").verdict == Drop(
            Reason.WAITING
        )

    def test_a_shadow_takes_no_slot_from_those_behind_it(self, backend: LockBackend) -> None:
        first, second = claim("c", limit=2, key="two"), claim("d", limit=2, key="two")
        for each in (first, second):
            backend.enter(each)
        park(backend, "e", limit=2, key="two")
        backend.enter(claim("c", "second", limit=2, key="two", wait=QUEUE), b"shadow")

        assert woken(backend.leave(second, Outcome.DONE)) == ["e"]
