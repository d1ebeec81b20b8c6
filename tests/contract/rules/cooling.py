"""A slot stays closed for a while after it was granted, whatever became of its holder."""

from __future__ import annotations

from celery_dlock.core.operations import OpenSlot
from celery_dlock.core.state import Busy, Cooling, KeyState, Left, Mode, Outcome, Park
from celery_dlock.testing.contract.words import (
    DAY,
    PLACE,
    QUEUE,
    SECOND,
    SHARED,
    listed_keys,
    woken,
)
from tests.contract.key import ABANDONED, DONE, MICROSECOND, OVER, Key, KeyTests

MINUTE = 60 * SECOND


def closed_for(seconds: float, parked: int = 0) -> Busy:
    """What a key that cools down answers."""
    return Busy(None, round(seconds * SECOND), parked)


class CoolingDown(KeyTests):
    """With a cooldown a key with one slot starts no more than one task in that time."""

    def test_a_slot_that_is_left_early_opens_when_it_has_cooled_down(self, key: Key) -> None:
        for outcome in Outcome:
            task = f"ends {outcome}"
            key.runs(task, cooldown=MINUTE)
            key.passes(5)

            assert isinstance(key.leave(task, outcome, cooldown=MINUTE).verdict, Left)

            assert key.asks("b") == closed_for(55)
            key.passes(55 - MICROSECOND)
            assert key.asks("b") == closed_for(MICROSECOND)
            key.passes(MICROSECOND)
            key.runs("b", nonce=task)
            key.leaves("b", OVER, nonce=task)

    def test_a_slot_opens_with_the_lease_when_that_lasts_longer(self, key: Key) -> None:
        key.runs("a", ttl=DAY, cooldown=MINUTE)
        key.passes(60)
        key.leaves("a", cooldown=MINUTE)
        key.runs("b", ttl=100, cooldown=MINUTE)
        key.passes(61)
        key.refuses("c")

        key.passes(39)

        key.runs("c")

    def test_a_holder_that_dies_leaves_its_slot_closed(self, key: Key) -> None:
        key.runs("a", ttl=15, cooldown=MINUTE)
        key.passes(15)

        assert key.asks("b") == closed_for(45)

        key.passes(45)
        key.runs("b")

    def test_renewals_and_who_asks_again_do_not_lengthen_it(self, key: Key) -> None:
        first = key.runs("a", cooldown=MINUTE)
        for _ in range(5):
            key.passes(8)
            key.renews("a", cooldown=MINUTE)
            assert key.runs("a", cooldown=MINUTE) == first

        key.leaves("a", OVER, cooldown=MINUTE)

        assert key.asks("b") == closed_for(20)

    def test_each_slot_cools_down_for_itself(self, key: Key) -> None:
        for task in ("a", "b"):
            key.runs(task, limit=2, cooldown=MINUTE)
            key.leaves(task, limit=2, cooldown=MINUTE)
            key.passes(20)

        assert key.asks("c", limit=2) == closed_for(20)
        key.passes(20)
        key.runs("c", limit=2)

        holder = key.refuses("d", limit=2).holder
        assert holder is not None
        assert holder.task == "c"

    def test_it_is_closed_for_the_same_task_and_for_readers_too(self, key: Key) -> None:
        key.runs("a", cooldown=MINUTE)
        key.leaves("a", OVER, cooldown=MINUTE)

        assert key.asks("a", "2") == closed_for(60)
        assert key.asks("a", "3", wait=PLACE) == closed_for(60)
        assert key.asks("b", mode=SHARED) == closed_for(60)

    def test_who_waits_is_woken_when_it_has_cooled_down(self, key: Key) -> None:
        key.runs("a", cooldown=MINUTE)
        key.parks("b", "c", cooldown=MINUTE)
        key.passes(5)
        assert key.leaves("a", cooldown=MINUTE) == []
        assert (key.sweeps(), key.sweep().next_in) == ([], 55.0)

        assert key.sweeps_in(55) == ["b"]
        key.runs("b", wait=QUEUE, cooldown=MINUTE)
        assert key.leaves("b", cooldown=MINUTE) == []
        assert key.sweeps_in(60) == ["c"]

    def test_who_comes_while_it_cools_down_waits_its_turn(self, key: Key) -> None:
        key.runs("a", cooldown=MINUTE)
        key.leaves("a", cooldown=MINUTE)

        assert key.asks("b", wait=QUEUE) == Park()

        assert key.asks("c") == closed_for(60, parked=1)
        assert key.sweeps_in(60) == ["b"]

    def test_where_no_body_has_begun_nothing_cools_down(self, key: Key) -> None:
        key.runs("a", cooldown=MINUTE)

        key.leaves("a", OVER, cooldown=MINUTE, begun=False)

        key.runs("b")

    def test_whoever_gives_back_for_the_holder_need_not_know_of_it(self, key: Key) -> None:
        key.runs("a", cooldown=MINUTE)

        key.leaves("a", ABANDONED, ttl=0)

        assert key.asks("b") == closed_for(60)

    def test_it_is_seen_until_when_and_nothing_of_it_stays(self, key: Key) -> None:
        key.runs("a", done_ttl=0, cooldown=MINUTE)
        (holder,) = key.backend.peek("key").holders
        assert holder.cools == key.clock() + MINUTE

        key.leaves("a", DONE, done_ttl=0, cooldown=MINUTE)

        for state in (key.backend.peek("key"), *key.backend.look(["key"])):
            assert state.cooling == (Cooling("1", Mode.EXCLUSIVE, 1, key.clock() + MINUTE),)
        assert listed_keys(key.backend) == ["key"]
        assert key.sweep().next_in == 60.0
        key.passes(60)
        assert key.sweep().next_in is None
        assert listed_keys(key.backend) == []
        assert key.backend.peek("key") == KeyState()

    def test_a_slot_can_be_opened_by_name_and_who_waits_is_woken(self, key: Key) -> None:
        for task in "ab":
            key.runs(task, nonce=task, limit=2, cooldown=MINUTE)
        key.parks("c", limit=2)
        for task in "ab":
            key.leaves(task, nonce=task, limit=2, cooldown=MINUTE)

        opened = key.backend.apply(OpenSlot("key", "a"))

        assert (opened.verdict, woken(opened)) == (True, ["c"])
        assert [slot.name for slot in key.backend.peek("key").cooling] == ["b"]
        assert not key.backend.apply(OpenSlot("key", "a")).verdict
