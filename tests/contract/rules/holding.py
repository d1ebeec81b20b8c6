"""More than one holder at once: readers, and the slots of a limit."""

from __future__ import annotations

from celery_dlock.core.state import Park
from celery_dlock.testing.contract.words import ENQUEUE, PLACE, QUEUE, SHARED, running, woken
from tests.contract.key import OVER, Key, KeyTests


class Sharing(KeyTests):
    """More than one at once: readers together, and the slots of ``limit=N``."""

    def test_readers_hold_the_key_together_and_each_leaves_for_itself(self, key: Key) -> None:
        key.runs("a", "b", "c", mode=SHARED)
        assert set(key.holders) == set("abc")

        for _ in range(2):
            key.leaves("a", OVER, mode=SHARED)

        assert set(key.holders) == set("bc")

    def test_a_writer_waits_for_the_last_reader_and_a_reader_for_the_writer(self, key: Key) -> None:
        key.runs("a", "b", mode=SHARED)
        for reader in "ab":
            key.refuses("writer")
            key.leaves(reader, OVER, mode=SHARED)

        key.runs("writer")

        key.refuses("reader", mode=SHARED)

    def test_a_waiting_writer_is_not_starved_by_later_readers(self, key: Key) -> None:
        key.runs("early", mode=SHARED)
        key.refuses("writer", wait=PLACE)

        key.refuses("late", mode=SHARED)

        key.leaves("early", OVER, mode=SHARED)
        key.runs("writer", wait=PLACE)

    def test_a_parked_writer_is_not_starved_by_later_readers(self, key: Key) -> None:
        key.runs("early", mode=SHARED)
        key.parks("writer")
        key.parks("late", mode=SHARED)

        assert key.leaves("early", OVER, mode=SHARED) == ["writer"]

    def test_parked_readers_are_woken_together_and_up_to_the_next_writer(self, key: Key) -> None:
        key.runs("writer")
        key.parks("r1", "r2", mode=SHARED)
        key.parks("second writer")
        key.parks("r3", mode=SHARED)

        assert key.leaves("writer", OVER) == ["r1", "r2"]

    def test_a_limit_gives_each_holder_a_slot_of_its_own(self, key: Key) -> None:
        assert [key.runs(task, limit=3).slot for task in "abc"] == [0, 1, 2]
        key.refuses("d", limit=3)

    def test_a_slot_that_was_left_is_given_to_the_next(self, key: Key) -> None:
        key.runs("a", "b", "c", limit=3)
        for _ in range(2):  # who leaves twice makes room once
            key.leaves("b", OVER, limit=3)

        assert key.runs("d", limit=3).slot == 1
        key.refuses("e", limit=3)

    def test_the_newest_asker_says_the_limit(self, key: Key) -> None:
        key.runs("a", limit=1)
        key.refuses("b", limit=1)

        key.runs("b", limit=2)

        assert [holder.limit for holder in key.backend.peek("key").holders] == [2, 2]
        key.refuses("c", limit=2)
        key.runs("c", limit=3)

    def test_a_limit_that_rises_wakes_as_many_as_there_is_room_for(self, key: Key) -> None:
        waiting = [f"waits {number}" for number in range(10)]
        key.runs("a", "b", limit=2)
        assert key.parks(*waiting, limit=2) == []

        assert key.parks("newest", limit=8) == waiting[:6]

        for task in waiting[:6]:
            key.runs(task, wait=QUEUE, limit=8)
        assert len(key.backend.peek("key").holders) == 8
        assert key.leaves("a", limit=2) == [waiting[6]]

    def test_a_limit_that_falls_lets_the_next_in_when_there_is_room(self, key: Key) -> None:
        key.runs("a", "b", "c", limit=3)
        assert key.parks("d", limit=1) == []

        assert key.leaves("b", limit=3) == []
        assert key.leaves("a", limit=3) == []
        assert key.leaves("c", limit=3) == ["d"]

    def test_who_was_woken_before_the_limit_fell_waits_first(self, key: Key) -> None:
        key.runs("a", "b", limit=2)
        key.parks("c", "d", limit=2)
        assert key.leaves("a", limit=2) == ["c"]

        assert key.asks("c", wait=QUEUE, limit=1) == Park()

        assert key.leaves("b", limit=2) == ["c"]
        key.runs("c", wait=QUEUE, limit=1)
        assert key.leaves("c", limit=1) == ["d"]

    def test_a_limit_holds_for_those_whose_leases_all_end_at_once(self, key: Key) -> None:
        key.runs("a", "b", limit=2)
        key.parks("c", "d", "e", limit=2)

        key.passes(11)

        assert key.sweeps() == ["c", "d"]

    def test_a_limit_of_one_is_no_other_kind_of_key(self, key: Key) -> None:
        key.runs("one", limit=1)
        key.refuses("alone")
        key.refuses("reads", mode=SHARED)
        key.leaves("one", limit=1)

        key.runs("alone")
        key.refuses("two", limit=1)
        key.refuses("three", limit=3)

    def test_an_asker_without_a_limit_leaves_that_of_the_key(self, key: Key) -> None:
        key.runs("a", limit=3)
        assert key.parks("b", "c", "d", wait=ENQUEUE, limit=0) == ["b", "c"]

        key.leaves("a", limit=3)

    def test_the_first_who_asks_says_how_many_more_of_a_queue_are_woken(self, key: Key) -> None:
        assert key.parks("a", "b", "c", "d", wait=ENQUEUE, limit=0) == ["a"]

        run = key.enter("a", wait=QUEUE, limit=3)

        assert (running(run).slot, woken(run)) == (0, ["b", "c"])

    def test_a_free_slot_wakes_one_parked_task_and_two_wake_two(self, key: Key) -> None:
        key.runs("a", "b", limit=2)
        key.parks("c", "d", "e", limit=2)

        assert key.leaves("a", OVER, limit=2) == ["c"]
        assert key.leaves("b", OVER, limit=2) == ["d"]
