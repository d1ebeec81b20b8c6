"""The index of the keys with something to do: a sweep finds those, and no others."""

from __future__ import annotations

from celery_dlock.core.state import Ending
from celery_dlock.stores.base import LockBackend, Swept, Wake
from celery_dlock.testing.contract import queueing as shipped
from celery_dlock.testing.contract.queueing import wait_for
from celery_dlock.testing.contract.words import ANY_BYTES, PLACE, QUEUE, at_once
from tests.contract.key import DONE, OVER, Key, KeyTests, message_of

SWEEPERS = 4
KEYS = 60
ODD = ["", " ", "a{b}c", "}{", "{{)", "{)", "ключ", "a:state", "due"]


class SweepingTests(KeyTests, shipped.SweepingTests):
    def test_a_key_is_not_due_when_no_message_waits(self, key: Key) -> None:
        assert key.sweep() == Swept((), None)
        key.runs("a")
        key.refuses("place", wait=PLACE)
        assert key.sweep() == Swept((), None)

        key.passes(60)

        assert key.sweep() == Swept((), None)

    def test_a_wake_that_nobody_answers_is_repeated_by_a_sweep(self, key: Key) -> None:
        wait_for(key.backend, "key")
        key.leaves("a", OVER)

        for wait, following in ((5, 10.0), (10, 20.0), (20, 40.0)):
            key.passes(wait)
            assert key.sweep() == Swept((Wake("key", "b", message_of("b")),), following)
            assert key.sweep() == Swept((), following)

    def test_a_message_that_waits_too_long_is_found_by_a_sweep(self, key: Key) -> None:
        key.runs("a", ttl=3600)
        key.parks("b", gives_up=60)
        assert key.sweep().next_in == 60.0
        key.passes(60)

        assert key.sweep().wakes == (Wake("key", "b", message_of("b"), Ending.TIMED_OUT),)

    def test_a_key_where_all_is_over_is_not_due_any_more(self, key: Key) -> None:
        wait_for(key.backend, "key")
        key.leaves("a", OVER)
        key.runs("b", wait=QUEUE)
        assert key.sweep() == Swept((), None)
        key.leaves("b", DONE)
        key.passes(60)

        assert key.sweep() == Swept((), None)

    def test_a_renewed_lease_makes_its_key_due_later(self, key: Key) -> None:
        wait_for(key.backend, "key")
        key.passes(6)
        key.renews("a")
        key.passes(6)

        assert key.sweep() == Swept((), 4.0)

        assert key.sweeps_in(4) == ["b"]

    def test_the_duplicate_of_a_running_task_does_not_keep_its_key_due(self, key: Key) -> None:
        key.runs("a", ttl=100)
        key.parks("a", nonce="copy", gives_up=10)
        key.passes(20)

        assert key.sweep() == Swept((), 80.0)

    def test_only_keys_that_are_due_are_swept_the_most_overdue_first(self, key: Key) -> None:
        for number in reversed(range(10)):
            wait_for(key.backend, f"key {number}", ttl=10 + number)
        key.passes(15)

        for limit, numbers, next_in in ((4, range(4), 0), (100, range(4, 6), 1.0)):
            swept = key.backend.sweep(limit)
            assert [wake.key for wake in swept.wakes] == [f"key {number}" for number in numbers]
            assert swept.next_in == next_in

    def test_a_sweep_names_any_key_of_its_prefix(self, key: Key, stranger: LockBackend) -> None:
        for name in ODD:
            wait_for(key.backend, name)
        key.passes(10)

        assert stranger.sweep() == Swept((), None)
        wakes = {Wake(name, "b", message_of("b")) for name in ODD}
        assert set(key.sweep().wakes) == wakes

    def test_the_kept_message_of_a_lost_run_is_returned_byte_by_byte(self, key: Key) -> None:
        key.runs("a", message=ANY_BYTES, wait=QUEUE, keep=True)
        key.passes(10)

        unchanged = key.reap() == (Wake("key", "a", ANY_BYTES),)
        assert unchanged

    def test_several_that_sweep_at_once_wake_each_task_once(self, key: Key) -> None:
        names = [f"key {number}" for number in range(KEYS)]
        for name in names[::2]:
            wait_for(key.backend, name)
        for name in names[1::2]:
            Key(key.backend, key.clock, name).runs("a", wait=QUEUE, keep=True)
        key.passes(10)

        swept = at_once(SWEEPERS, lambda _: [key.backend.sweep(limit=20) for _ in range(3)])

        woken = [wake.key for sweeps in swept for one in sweeps for wake in one.wakes]
        woken += [wake.key for wake in key.sweep().wakes]
        assert sorted(woken) == sorted(names)
