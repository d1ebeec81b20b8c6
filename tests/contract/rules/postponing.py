"""Debounced calls: the newest message takes the place of the one that waits."""

from __future__ import annotations

from celery_dlock.core.debounce import Postponed
from celery_dlock.stores.base import Reply, Wake
from celery_dlock.testing.contract.words import ANY_BYTES, PLACE, SECOND, claim, listed_keys
from tests.contract.key import MICROSECOND, OVER, Key, KeyTests


def postpone(key: Key, task: str, message: bytes = b"1", delay: float = 10) -> Reply[Postponed]:
    """Debounce a call for so many seconds, and for 25 at most."""
    return key.backend.postpone(claim(task, ""), message, round(delay * SECOND), 25 * SECOND)


class Postponing(KeyTests):
    """A debounced message waits until no newer one has come for a while."""

    def test_it_is_due_after_its_delay_and_is_seen_until_then(self, key: Key) -> None:
        assert postpone(key, "a", ANY_BYTES) == Reply(Postponed("a"))

        for state in (key.backend.peek("key"), *key.backend.look(["key"])):
            assert [slot.until for slot in state.cooling] == [key.clock() + 10 * SECOND]
            assert [entry.task for entry in state.waiting] == ["a"]
        assert key.backend.keys(waiting=True).keys == ("key",)
        assert (key.sweeps(), key.sweep().next_in) == ([], 10.0)
        key.passes(10 - MICROSECOND)
        assert key.sweeps() == []
        key.passes(MICROSECOND)
        unchanged = key.sweep().wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged

    def test_a_newer_one_takes_its_place_and_puts_it_off(self, key: Key) -> None:
        postpone(key, "a")
        key.passes(8)

        assert postpone(key, "b", b"2").verdict.task == "a"

        assert key.sweep().next_in == 10.0
        key.passes(10)
        assert key.sweep().wakes == (Wake("key", "a", b"2"),)
        assert key.backend.parked(["b"]) == []

    def test_but_no_further_than_it_may_be_put_off_at_most(self, key: Key) -> None:
        postpone(key, "a")
        for number in range(3):
            key.passes(8)
            postpone(key, "b", b"%d" % number)

        assert key.sweep().next_in == 1.0
        key.passes(1)
        assert key.sweep().wakes == (Wake("key", "a", b"2"),)

    def test_a_shorter_delay_counts_from_the_last_call_too(self, key: Key) -> None:
        postpone(key, "a", delay=20)

        postpone(key, "b", delay=5)

        assert key.sweep().next_in == 5.0

    def test_one_that_is_not_woken_in_time_is_replaced_by_who_comes(self, key: Key) -> None:
        postpone(key, "a")
        key.passes(40)

        assert postpone(key, "b", b"2") == Reply(Postponed("a"), (Wake("key", "a", b"2"),))

    def test_what_is_woken_has_begun_and_the_next_one_waits_behind_it(self, key: Key) -> None:
        postpone(key, "a")
        key.passes(10)
        assert key.sweeps() == ["a"]

        assert postpone(key, "b", b"2").verdict.task == "b"

        key.passes(10)
        assert key.sweeps() == ["a"]  # again: nobody has answered
        assert key.leave("a", OVER).wakes == (Wake("key", "b", b"2"),)

    def test_whoever_asks_twice_has_one_message_and_nothing_of_it_stays(self, key: Key) -> None:
        for _ in range(2):
            assert postpone(key, "a").verdict.task == "a"
        key.passes(10)
        assert key.sweeps() == ["a"]

        assert postpone(key, "a").verdict.task == "a"

        key.leaves("a", OVER)
        assert listed_keys(key.backend) == []
        assert key.backend.message("key", "a") is None

    def test_it_ends_when_it_is_revoked(self, key: Key) -> None:
        postpone(key, "a")

        assert key.cancels("a") == ["a"]

        assert postpone(key, "b").verdict.task == "b"

    def test_a_place_of_the_same_task_is_taken_over(self, key: Key) -> None:
        key.runs("a")
        key.refuses("b", wait=PLACE)

        assert postpone(key, "b").verdict.task == "b"

        assert [entry.parked for entry in key.backend.peek("key").waiting] == [True]
