"""More than one holder at once: readers, and the slots of a limit."""

from __future__ import annotations

from celery_dlock.testing.contract.words import PLACE, SHARED
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

    def test_a_limit_that_was_lowered_counts_while_both_versions_run(self, key: Key) -> None:
        key.runs("old", limit=3)
        key.refuses("new", limit=1)

        key.leaves("old", OVER, limit=3)
        key.runs("new", limit=1)
        key.refuses("old again", limit=3)

    def test_a_free_slot_wakes_one_parked_task_and_two_wake_two(self, key: Key) -> None:
        key.runs("a", "b", limit=2)
        key.parks("c", "d", "e", limit=2)

        assert key.leaves("a", OVER, limit=2) == ["c"]
        assert key.leaves("b", OVER, limit=2) == ["d"]
