"""Turns that nobody takes, and time in which no worker was there."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import (
    STRANGER_RESERVED,
    WAKES_RESERVED,
    Busy,
    End,
    Ending,
    Outcome,
    Park,
)
from celery_dlock.core.turns import UNATTENDED
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract.words import (
    ENQUEUE,
    QUEUE,
    SECOND,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock


def call(backend: LockBackend, task: str = "b", **others: float | bool) -> None:
    """*task* has had to wait for the key, and is woken."""
    running(backend.enter(claim("a")))
    park(backend, task, **others)
    assert woken(backend.leave(claim("a"), Outcome.DONE)) == [task]


def wake_in_vain(backend: LockBackend, clock: ManualClock, times: int) -> list[str]:
    """Sweep whenever it is time to, so often; who was woken the last time."""
    tasks: list[str] = []
    for _ in range(times):
        clock.advance(backend.sweep().next_in or 0)
        tasks = woken(backend.sweep())
    return tasks


def hand_back(backend: LockBackend, clock: ManualClock, times: int) -> list[str]:
    """Task b is of another broker, of which nobody comes for five seconds, so often.

    Returns who was woken besides.
    """
    others: list[str] = []
    for _ in range(times):
        others += woken(backend.hand_back("key", "b"))
        clock.advance(5)
        others += [task for task in woken(backend.sweep()) if task != "b"]
    return others


class Unanswered(StoreUnderTest):
    """Turns that nobody takes keep the key for a while only, and end when their patience does."""

    def test_a_turn_that_nobody_takes_keeps_the_key_for_some_wakes(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        call(backend)
        wake_in_vain(backend, clock, WAKES_RESERVED - 1)
        assert isinstance(backend.enter(claim("c")).verdict, Busy)

        wake_in_vain(backend, clock, 1)

        running(backend.enter(claim("c")))

    def test_the_next_is_woken_when_a_turn_keeps_the_key_no_longer(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        call(backend)
        park(backend, "c")

        assert wake_in_vain(backend, clock, WAKES_RESERVED - 1) == ["b"]
        assert wake_in_vain(backend, clock, 1) == ["b", "c"]

    def test_who_comes_late_to_its_turn_has_the_key_if_nobody_else_has(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        call(backend)
        wake_in_vain(backend, clock, WAKES_RESERVED)

        running(backend.enter(claim("b", wait=QUEUE), b"message of b"))

    def test_who_comes_late_to_its_turn_is_the_next_and_as_patient_as_before(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        call(backend, gives_up=3600)
        park(backend, "d")
        wake_in_vain(backend, clock, WAKES_RESERVED)
        before = {grant.task: grant.gives_up for grant in backend.peek("key").grants}
        running(backend.enter(claim("d", wait=QUEUE), b"message of d"))
        park(backend, "e")

        reply = backend.enter(claim("b", wait=QUEUE, gives_up=3600), b"message of b")

        assert reply.verdict == Park()
        first = backend.peek("key").waiting[0]
        assert (first.task, first.gives_up) == ("b", before["b"])
        assert woken(backend.leave(claim("d"), Outcome.DONE)) == ["b"]

    def test_a_turn_that_nobody_takes_ends_when_it_has_waited_for_long_enough(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        call(backend, gives_up=60)
        park(backend, "c")
        for _ in range(3):  # at 5, at 15 and at 35 seconds
            wake_in_vain(backend, clock, 1)
        clock.advance(24.999_999)
        assert backend.sweep().wakes == ()

        clock.advance(0.000_001)

        ended, woken_one = backend.sweep().wakes
        assert (ended.task, ended.ending, ended.message) == (
            *("b", Ending.TIMED_OUT),
            b"message of b",
        )
        assert (woken_one.task, woken_one.ending) == ("c", None)
        verdict = backend.enter(claim("b", wait=QUEUE), b"message of b").verdict
        assert verdict == End(Ending.TIMED_OUT)

    def test_a_turn_that_was_just_woken_may_still_be_taken_in_time(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=60)))
        park(backend, "b", gives_up=50)
        clock.advance(49)
        assert woken(backend.leave(claim("a"), Outcome.DONE)) == ["b"]
        clock.advance(4)
        assert backend.reap("key").wakes == ()

        running(backend.enter(claim("b", wait=QUEUE), b"message of b"))

    def test_nobody_overtakes_a_turn_whose_order_was_promised(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))
        backend.enter(claim("b", wait=ENQUEUE, gives_up=7200, ordered=True), b"message of b")
        park(backend, "c")
        backend.leave(claim("a"), Outcome.DONE)
        wake_in_vain(backend, clock, WAKES_RESERVED + 1)
        assert isinstance(backend.enter(claim("d")).verdict, Busy)
        assert [grant.task for grant in backend.peek("key").grants] == ["b"]

        while not any(grant.ending for grant in backend.peek("key").grants):
            wake_in_vain(backend, clock, 1)

        assert [grant.task for grant in backend.peek("key").grants] == ["b", "c"]

    def test_a_message_of_another_broker_keeps_the_key_for_half_a_minute_or_so(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        call(backend)
        park(backend, "c")
        assert hand_back(backend, clock, STRANGER_RESERVED // (5 * SECOND) - 1) == []
        assert isinstance(backend.enter(claim("d")).verdict, Busy)

        assert hand_back(backend, clock, 1) == ["c"]

        running(backend.enter(claim("c", wait=QUEUE), b"message of c"))

    def test_a_message_of_another_broker_ends_when_it_has_waited_for_long_enough(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        call(backend, gives_up=60)

        hand_back(backend, clock, 13)

        (turn,) = backend.peek("key").grants
        assert turn.ending is Ending.TIMED_OUT
        hand_back(backend, clock, 1)
        (turn,) = backend.peek("key").grants
        assert turn.ending is Ending.TIMED_OUT

    def test_a_wake_says_how_often_it_was_made(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        call(backend)
        for calls in (2, 3, 4):
            clock.advance(backend.sweep().next_in or 0)

            (wake,) = backend.sweep().wakes

            assert wake.woken == calls


GRACE = UNATTENDED / SECOND
AWAY = 10 * 3600.0


class Pausing(StoreUnderTest):
    """While nobody serves a key nobody's patience ends: it is all the time of those who wait."""

    @pytest.fixture
    def unserved(self, backend: LockBackend, clock: ManualClock) -> LockBackend:
        """Tasks b, c and d wait for a minute behind a; all workers are gone, for ten hours."""
        running(backend.enter(claim("a", ttl=10)))
        park(backend, "b", "c", "d", gives_up=60)
        clock.advance(AWAY)
        return backend

    def test_nobody_is_ended_because_no_worker_was_there(self, unserved: LockBackend) -> None:
        (woken_one,) = unserved.sweep().wakes

        assert (woken_one.task, woken_one.ending) == ("b", None)
        assert [entry.task for entry in unserved.peek("key").waiting] == ["c", "d"]

    def test_all_who_waited_have_their_turn_after_the_pause(
        self, unserved: LockBackend, clock: ManualClock
    ) -> None:
        unserved.sweep()
        for task, following in (("b", ["c"]), ("c", ["d"]), ("d", [])):
            running(unserved.enter(claim(task, wait=QUEUE), b"message"))
            clock.advance(5)
            assert woken(unserved.leave(claim(task), Outcome.DONE)) == following

    def test_patience_ends_later_by_the_pause(
        self, unserved: LockBackend, clock: ManualClock
    ) -> None:
        unserved.sweep()
        running(unserved.enter(claim("b", wait=QUEUE, ttl=3600), b"message"))
        left = 50 + GRACE  # ten seconds had passed when the key was due, and nobody came
        clock.advance(left - 0.000_001)
        assert unserved.sweep().wakes == ()

        clock.advance(0.000_001)

        ended = [(wake.task, wake.ending) for wake in unserved.sweep().wakes]
        assert ended == [("c", Ending.TIMED_OUT), ("d", Ending.TIMED_OUT)]

    def test_who_comes_after_a_pause_is_as_patient_as_ever(
        self, unserved: LockBackend, clock: ManualClock
    ) -> None:
        unserved.sweep()
        running(unserved.enter(claim("b", wait=QUEUE, ttl=3600), b"message"))
        late = unserved.enter(claim("e", wait=QUEUE, gives_up=20), b"message of e")
        assert late.verdict == Park()
        clock.advance(20)

        (ended,) = unserved.sweep().wakes

        assert (ended.task, ended.ending) == ("e", Ending.TIMED_OUT)

    def test_whatever_happens_first_after_a_pause_ends_nobody(self, unserved: LockBackend) -> None:
        assert woken(unserved.leave(claim("a"), Outcome.OVER)) == ["b"]

        assert [entry.task for entry in unserved.peek("key").waiting] == ["c", "d"]

    def test_a_turn_that_was_woken_before_a_pause_is_woken_again_and_not_ended(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b", gives_up=60)
        assert woken(backend.leave(claim("a"), Outcome.OVER)) == ["b"]
        clock.advance(AWAY)

        (woken_one,) = backend.sweep().wakes

        assert (woken_one.task, woken_one.ending) == ("b", None)

    def test_a_sweep_that_is_a_little_late_is_no_pause(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b", gives_up=60)
        clock.advance(60 + GRACE)

        (ended,) = backend.sweep().wakes

        assert (ended.task, ended.ending) == ("b", Ending.TIMED_OUT)

    def test_pauses_add_up(self, unserved: LockBackend, clock: ManualClock) -> None:
        for _ in range(3):
            assert unserved.sweep().wakes[0].ending is None
            clock.advance(AWAY)

        assert all(wake.ending is None for wake in unserved.sweep().wakes)

    def test_a_pause_is_forgotten_with_the_last_message(
        self, unserved: LockBackend, clock: ManualClock
    ) -> None:
        unserved.sweep()
        for task in ("b", "c", "d"):
            running(unserved.enter(claim(task, wait=QUEUE), b"message"))
            unserved.leave(claim(task), Outcome.DONE)
        running(unserved.enter(claim("e")))

        assert unserved.peek("key").paused == 0
