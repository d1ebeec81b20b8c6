"""Who waits for a key: messages in the queue, places that are kept, and duplicates of what runs."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Drop,
    Ending,
    Left,
    Outcome,
    Park,
    Reason,
    WaitMode,
)
from celery_dlock.stores.base import Reply, Wake
from celery_dlock.testing.contract.words import ANY_BYTES, ENQUEUE, PLACE, QUEUE, SHARED
from tests.contract.key import (
    ABANDONED,
    DONE,
    MICROSECOND,
    OVER,
    REPEAT,
    Key,
    KeyTests,
    message_of,
)

HEAD = WaitMode.HEAD


class QueueingTests(KeyTests):
    """The queue: a message is kept as it came, first come first woken, and a wake reserves."""

    def test_a_free_key_needs_no_queue(self, key: Key) -> None:
        key.runs("a", wait=QUEUE)

        assert key.leaves("a", wait=QUEUE) == []
        assert key.reap() == ()

    def test_who_has_the_key_and_how_many_wait_is_told(self, key: Key) -> None:
        key.runs("a", name="shop.charge", where="worker:1")

        for task in "bc":  # the first one, and one that comes where others wait already
            verdict = key.asks(task, wait=QUEUE)
            assert isinstance(verdict, Park)
            assert verdict.holder is not None
            assert verdict.holder.who == "shop.charge[a] on worker:1"
        assert key.refuses("d").parked == 2

    def test_a_wake_reserves_the_key_against_newcomers(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")
        key.leaves("a", OVER)

        assert key.asks("newcomer") == Busy(None, 0, 0)
        assert key.asks("queuer", wait=QUEUE) == Park()

        key.runs("b", wait=QUEUE)

    def test_a_newcomer_does_not_overtake_who_waits(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")
        key.passes(11)

        reply = key.enter("newcomer")

        assert isinstance(reply.verdict, Busy)
        assert [wake.task for wake in reply.wakes] == ["b"]

    def test_a_duplicate_of_a_waiting_task_is_dropped(self, key: Key) -> None:
        key.runs("a")
        key.enter("b", "first", b"first", wait=QUEUE)

        assert key.asks("b", "second", wait=QUEUE, message=b"second") == Drop(Reason.WAITING)

        assert key.leave("a").wakes == (Wake("key", "b", b"first"),)

    def test_a_wake_that_nobody_answers_is_repeated_at_growing_distance_for_ever(
        self, key: Key
    ) -> None:
        key.runs("a")
        key.parks("b")
        key.leaves("a", OVER)

        for wait in (5, 10, 20, 40, 80, 160, 320, 600, 600):
            key.passes(wait - MICROSECOND)
            assert key.reap() == ()
            key.passes(MICROSECOND)
            assert key.reap() == (Wake("key", "b", message_of("b")),)

        key.runs("b", wait=QUEUE)

    def test_a_wake_is_answered_once(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")
        key.leaves("a", OVER)
        key.runs("b", wait=QUEUE)

        key.passes(6)

        assert key.reap() == ()
        assert isinstance(key.leave("b", OVER).verdict, Left)
        key.runs("c")

    def test_an_ended_lease_wakes_the_next_when_time_is_let_pass(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")
        assert key.reap() == ()
        key.passes(10)

        assert [wake.task for wake in key.reap()] == ["b"]
        assert key.reap() == ()

    def test_a_woken_task_that_finds_the_limit_lowered_goes_back(self, key: Key) -> None:
        key.runs("a", "b", limit=2)
        key.parks("c", "d", limit=2)
        first = key.backend.peek("key").waiting[0].arrived
        key.passes(5)
        assert key.leaves("a", OVER, limit=2) == ["c"]
        assert [turn.arrived for turn in key.backend.look(["key"])[0].grants] == [first]

        assert key.asks("c", wait=QUEUE, limit=1, message=b"new") == Park()

        assert [entry.arrived for entry in key.backend.peek("key").waiting] == [first, first]
        assert key.leave("b", limit=2).wakes == (Wake("key", "c", message_of("c")),)


class Publishing(KeyTests):
    """Order as published: a publisher leaves the message in the queue, and never holds the key."""

    def test_a_published_message_is_woken_at_once_on_a_free_key(self, key: Key) -> None:
        reply = key.enter("a", "p", ANY_BYTES, wait=ENQUEUE)

        unchanged = reply.wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged
        assert reply.verdict == Park()
        assert key.holders == []
        key.runs("a", wait=QUEUE)

    def test_published_messages_are_woken_in_order_one_at_a_time(self, key: Key) -> None:
        assert key.parks("a", "b", "c", wait=ENQUEUE) == ["a"]

        for task, following in (("a", ["b"]), ("b", ["c"]), ("c", [])):
            key.runs(task, wait=QUEUE)
            assert key.leaves(task) == following

    def test_a_published_message_waits_behind_a_holder_and_behind_who_waits(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")

        assert key.parks("c", wait=ENQUEUE) == []

        assert key.leaves("a") == ["b"]

    def test_a_wake_of_a_published_message_is_repeated_by_a_sweep(self, key: Key) -> None:
        key.parks("a", wait=ENQUEUE)
        assert key.sweep().next_in == 5.0
        key.passes(5)

        assert key.sweep().wakes == (Wake("key", "a", message_of("a")),)

    def test_as_many_are_woken_as_there_are_slots_and_readers_together(self, key: Key) -> None:
        assert key.parks("a", "b", "c", wait=ENQUEUE, limit=2) == ["a", "b"]
        other = Key(key.backend, key.clock, "read")
        assert other.parks("r", "s", wait=ENQUEUE, mode=SHARED) == ["r", "s"]
        assert other.parks("w", wait=ENQUEUE) == []

    def test_a_message_that_is_published_twice_is_there_once(self, key: Key) -> None:
        key.parks("a", "b", wait=ENQUEUE)

        for task in "ab":
            assert key.enter(task, "again", wait=ENQUEUE) == Reply(Drop(Reason.WAITING))

        key.runs("a", wait=QUEUE)
        assert key.leave("a").wakes == (Wake("key", "b", message_of("b")),)
        assert key.enter("a", "again", wait=ENQUEUE) == Reply(Drop(Reason.DONE))

    def test_a_running_task_that_is_published_has_a_shadow(self, key: Key) -> None:
        key.runs("a", wait=QUEUE)
        assert key.parks("a", wait=ENQUEUE, nonce="p") == []

        assert key.sweeps_in(10) == ["a"]

    def test_a_lost_run_does_not_make_a_publisher_run(self, key: Key) -> None:
        key.runs("a")
        key.passes(10)

        assert key.parks("a", wait=ENQUEUE, nonce="p") == ["a"]
        assert key.holders == []

    def test_a_published_message_takes_over_a_place_and_its_reservation(self, key: Key) -> None:
        key.runs("a")
        for task in "bc":
            key.refuses(task, wait=PLACE)
        key.parks("d")

        assert key.parks("c", wait=ENQUEUE) == []
        key.leaves("a")  # the key is reserved for b's place
        assert key.parks("b", wait=ENQUEUE) == ["b"]

        key.runs("b", wait=QUEUE)
        assert key.leaves("b") == ["c"]

    def test_a_full_queue_takes_no_published_message(self, key: Key) -> None:
        key.parks("a", "b", wait=ENQUEUE, max_waiting=1)

        assert key.asks("c", "p", wait=ENQUEUE, max_waiting=1) == Busy(None, 0, 1, full=True)

        key.runs("a", wait=QUEUE)
        key.leaves("a")
        key.parks("c", wait=ENQUEUE, max_waiting=1)

    def test_the_first_message_makes_room_for_a_published_one(self, key: Key) -> None:
        key.parks("a", "b", wait=ENQUEUE, drop_oldest=True)

        reply = key.enter("c", "p", wait=ENQUEUE, max_waiting=1, drop_oldest=True)

        assert reply == Reply(Park(), (Wake("key", "b", message_of("b"), Ending.DROPPED),))

    def test_a_published_message_gives_up_as_others_do(self, key: Key) -> None:
        key.runs("a", ttl=3600)
        key.parks("b", wait=ENQUEUE, gives_up=60)
        assert key.sweep().next_in == 60.0
        key.passes(60)

        assert key.sweep().wakes == (Wake("key", "b", message_of("b"), Ending.TIMED_OUT),)

    @pytest.mark.parametrize("others", [1, 2 * WINDOW], ids=["one waits", "many wait"])
    def test_a_message_at_the_head_is_next(self, key: Key, others: int) -> None:
        key.runs("a")
        key.parks(*(f"task {n}" for n in range(others)))
        assert key.parks("c", wait=HEAD, ordered=True, max_waiting=1) == []
        assert key.refuses("d").parked == others + 1

        assert key.leaves("a") == ["c"]

        key.runs("c", wait=QUEUE)
        assert key.leaves("c") == ["task 0"]

    def test_a_lease_that_ends_wakes_the_head(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")
        key.parks("c", wait=HEAD, ordered=True)

        assert key.sweeps_in(10) == ["c"]

    def test_a_message_waits_once_where_it_came_first(self, key: Key) -> None:
        key.runs("a")
        key.parks("b", "c")

        assert key.asks("c", "p", wait=HEAD) == Drop(Reason.WAITING)

        assert key.waiting == ["b", "c"]

    def test_a_place_goes_to_the_head(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")
        key.refuses("c", wait=PLACE)
        arrived = key.backend.peek("key").waiting[1].arrived

        assert key.parks("c", wait=HEAD) == []

        assert key.waiting == ["c", "b"]
        assert key.backend.peek("key").waiting[0].arrived == arrived

    def test_what_runs_has_a_shadow_and_what_is_done_is_none(self, key: Key) -> None:
        key.runs("a", wait=QUEUE)
        assert key.parks("a", wait=HEAD, nonce="p") == []
        key.leaves("a")

        assert key.asks("a", "p", wait=HEAD) == Drop(Reason.DONE)

    def test_a_successor_at_the_head_comes_before_who_had_started(self, key: Key) -> None:
        key.runs("b")
        key.leaves("b", ABANDONED)
        key.runs("a")
        key.parks("c", wait=HEAD, ordered=True)
        key.parks("b")
        assert key.waiting == ["b", "c"]

        assert key.leaves("a", successor="c") == ["c"]


class Places(KeyTests):
    """Places: a task that comes back by itself keeps its rank, for a while, and blocks nobody."""

    def test_a_place_is_kept_before_messages_that_came_later(self, key: Key) -> None:
        key.runs("a")
        key.refuses("none of them waits")
        key.refuses("place", wait=PLACE)
        key.parks("parked")

        assert key.leaves("a", OVER) == []

        key.refuses("newcomer")
        key.runs("place", wait=PLACE)
        assert key.waiting == ["parked"]
        assert key.leaves("place", OVER) == ["parked"]

    def test_a_place_does_not_overtake_messages_that_came_before(self, key: Key) -> None:
        key.runs("a")
        key.parks("parked")
        key.refuses("place", wait=PLACE)

        assert key.leaves("a", OVER) == ["parked"]

        key.refuses("place", wait=PLACE)

    @pytest.mark.parametrize("comes_back", [False, True])
    def test_a_place_expires_unless_its_task_comes_back(self, key: Key, comes_back: bool) -> None:
        key.runs("a", ttl=60)
        key.refuses("place", wait=PLACE)
        key.parks("parked")
        key.passes(15)
        if comes_back:
            key.refuses("place", wait=PLACE)
        key.passes(15)

        assert key.leaves("a", OVER) == ([] if comes_back else ["parked"])

        if comes_back:
            key.runs("place", wait=PLACE)

    def test_who_asks_again_has_waited_since_the_first_time(self, key: Key) -> None:
        key.runs("a", ttl=60)
        key.refuses("place", wait=PLACE)
        (first,) = (entry.arrived for entry in key.backend.peek("key").waiting)

        for nonce in ("second", "third"):
            key.passes(20)
            key.refuses("place", nonce=nonce, wait=PLACE)
        assert [entry.arrived for entry in key.backend.peek("key").waiting] == [first]

        # Also when its turn has come, and when it leaves its message from now on
        key.parks("parked")
        key.parks("place", nonce="fourth")
        assert key.backend.look(["key"])[0].waiting[0].arrived == first
        assert key.leave("a", OVER).wakes == (Wake("key", "place", message_of("place")),)
        assert [turn.arrived for turn in key.backend.look(["key"])[0].grants] == [first]

    def test_a_turn_kept_for_a_place_goes_on_when_its_patience_is_over(self, key: Key) -> None:
        key.runs("a")
        key.refuses("place", wait=PLACE)
        key.parks("parked")
        key.leaves("a", OVER)

        key.passes(29)
        assert key.reap() == ()
        key.passes(1)
        assert [wake.task for wake in key.reap()] == ["parked"]

    def test_places_alone_reserve_nothing(self, key: Key) -> None:
        key.runs("a")
        for task in ("first", "second"):
            key.refuses(task, wait=PLACE)
        key.leaves("a", OVER)

        key.runs("newcomer")


class Shadows(KeyTests):
    """A second delivery of a task that runs: it waits as its shadow, and never runs beside it.

    It may be the only one that survives the first one's death, so it must not be acknowledged
    away; and it must be gone when the first one ends well.
    """

    @pytest.fixture
    def shadowed(self, key: Key) -> Key:
        """Task a runs and has a shadow; task b waits behind it."""
        key.runs("a", wait=QUEUE)
        key.parks("b")
        key.parks("a", nonce="second")
        return key

    @pytest.mark.parametrize("outcome", [DONE, OVER])
    def test_a_shadow_goes_when_the_task_is_through(self, shadowed: Key, outcome: Outcome) -> None:
        assert shadowed.leaves("a", outcome, wait=QUEUE) == ["b"]

        shadowed.runs("b", wait=QUEUE)
        assert shadowed.leaves("b") == []

    @pytest.mark.parametrize("outcome", [ABANDONED, REPEAT])
    def test_a_shadow_is_woken_first_after_a_loss(self, shadowed: Key, outcome: Outcome) -> None:
        reply = shadowed.leave("a", outcome, b"repeat", wait=QUEUE)

        assert reply == Reply(Left(carried=True), (Wake("key", "a", message_of("a")),))

    def test_a_shadow_is_woken_first_when_the_lease_has_ended(self, shadowed: Key) -> None:
        shadowed.passes(9)
        assert shadowed.reap() == ()
        assert shadowed.asks("a", "third", wait=QUEUE) == Drop(Reason.WAITING)
        shadowed.passes(1)

        assert [wake.task for wake in shadowed.reap()] == ["a"]

        shadowed.runs("a", nonce="second", wait=QUEUE)

    def test_a_shadow_takes_no_slot_from_those_behind_it(self, key: Key) -> None:
        key.runs("c", "d", limit=2)
        key.parks("e", limit=2)
        key.enter("c", "second", limit=2, wait=QUEUE)

        assert key.leaves("d", limit=2) == ["e"]
