"""The index of the keys with something to do: a sweep finds those, and no others."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import Ending, Outcome
from celery_dlock.stores.base import LockBackend, Swept, Wake
from celery_dlock.testing.contract import queueing as shipped
from celery_dlock.testing.contract.queueing import wait_for
from celery_dlock.testing.contract.words import PLACE, QUEUE, at_once, claim, park, running, woken
from celery_dlock.testing.project import ManualClock

SWEEPERS = 4
KEYS = 60


class SweepingTests(shipped.SweepingTests):
    def test_nothing_is_due_where_nothing_is(self, backend: LockBackend) -> None:
        assert backend.sweep() == Swept((), None)

    def test_a_key_is_not_due_when_no_message_waits(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))
        backend.enter(claim("place", wait=PLACE))
        backend.enter(claim("b"))
        assert backend.sweep() == Swept((), None)

        clock.advance(60)

        assert backend.sweep() == Swept((), None)

    def test_a_wake_that_nobody_answers_is_repeated_by_a_sweep(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        wait_for(backend, "key")
        backend.leave(claim("a"), Outcome.OVER)

        for wait, following in ((5, 10.0), (10, 20.0), (20, 40.0)):
            clock.advance(wait)
            assert backend.sweep() == Swept((Wake("key", "b", b"message of b"),), following)
            assert backend.sweep() == Swept((), following)

    def test_a_message_that_waits_too_long_is_found_by_a_sweep(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b", gives_up=60)
        assert backend.sweep().next_in == 60.0
        clock.advance(60)

        (wake,) = backend.sweep().wakes

        assert wake == Wake("key", "b", b"message of b", Ending.TIMED_OUT)

    def test_a_key_where_all_is_over_is_not_due_any_more(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        wait_for(backend, "key")
        backend.leave(claim("a"), Outcome.OVER)
        running(backend.enter(claim("b", wait=QUEUE)))
        assert backend.sweep() == Swept((), None)
        backend.leave(claim("b"), Outcome.DONE)
        clock.advance(60)

        assert backend.sweep() == Swept((), None)

    def test_a_renewed_lease_makes_its_key_due_later(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        wait_for(backend, "key")
        clock.advance(6)
        backend.renew([claim("a")])
        clock.advance(6)

        assert backend.sweep() == Swept((), 4.0)

        clock.advance(4)
        assert woken(backend.sweep()) == ["b"]

    def test_the_duplicate_of_a_running_task_does_not_keep_its_key_due(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=100)))
        backend.enter(claim("a", "copy", wait=QUEUE, gives_up=10), b"copy")
        clock.advance(20)

        assert backend.sweep() == Swept((), 80.0)

    def test_only_the_keys_that_are_due_are_swept(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for number in range(10):
            wait_for(backend, f"key {number}", ttl=10 * (number + 1))
        clock.advance(30)

        swept = backend.sweep()

        assert [wake.key for wake in swept.wakes] == ["key 0", "key 1", "key 2"]
        assert swept.next_in == 5.0

    def test_the_most_overdue_keys_come_first_and_no_more_than_asked_for(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for number in reversed(range(10)):
            wait_for(backend, f"key {number}", ttl=10 + number)
        clock.advance(60)

        swept = backend.sweep(limit=4)

        assert [wake.key for wake in swept.wakes] == [f"key {number}" for number in range(4)]
        assert swept.next_in == 0
        assert [wake.key for wake in backend.sweep().wakes] == [f"key {n}" for n in range(4, 10)]

    @pytest.mark.parametrize("key", ["", " ", "a{b}c", "}{", "{{)", "{)", "ключ", "a:state", "due"])
    def test_a_sweep_tells_the_name_of_any_key(
        self, backend: LockBackend, clock: ManualClock, key: str
    ) -> None:
        wait_for(backend, key)
        clock.advance(10)

        assert backend.sweep().wakes == (Wake(key, "b", b"message of b"),)

    def test_a_sweep_leaves_the_keys_of_another_prefix_alone(
        self, backend: LockBackend, stranger: LockBackend, clock: ManualClock
    ) -> None:
        wait_for(backend, "key")
        clock.advance(10)

        assert stranger.sweep() == Swept((), None)
        assert woken(backend.sweep()) == ["b"]

    def test_several_that_sweep_at_once_wake_each_task_once(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for number in range(KEYS):
            wait_for(backend, f"key {number}")
        clock.advance(10)

        swept = at_once(SWEEPERS, lambda _: [backend.sweep(limit=20) for _ in range(3)])

        keys_woken = [wake.key for each in swept for one in each for wake in one.wakes]
        keys_woken += [wake.key for wake in backend.sweep().wakes]

        assert sorted(keys_woken) == sorted(f"key {number}" for number in range(KEYS))
