"""Turns that nobody takes, and time in which no worker was there."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.state import STRANGER_RESERVED, WAKES_RESERVED, End, Ending, Outcome, Park
from celery_dlock.core.turns import UNATTENDED
from celery_dlock.stores.base import Wake
from celery_dlock.testing.contract.words import ENQUEUE, QUEUE, SECOND, woken
from tests.contract.key import DONE, MICROSECOND, OVER, Key, KeyTests, message_of


def call(key: Key, **terms: Any) -> None:
    """Task b has had to wait for the key, and is woken."""
    key.runs("a")
    key.parks("b", **terms)
    assert key.leaves("a") == ["b"]


def wake_in_vain(key: Key, times: int) -> list[str]:
    """Sweep whenever it is time to, so often; who was woken the last time."""
    tasks: list[str] = []
    for _ in range(times):
        key.passes(key.sweep().next_in or 0)
        tasks = key.sweeps()
    return tasks


def hand_back(key: Key, times: int) -> list[str]:
    """Task b is of another broker, of which nobody comes for five seconds, so often.

    Returns who was woken besides.
    """
    others: list[str] = []
    for _ in range(times):
        others += woken(key.backend.hand_back("key", "b"))
        key.passes(5)
        others += [task for task in key.sweeps() if task != "b"]
    return others


class Unanswered(KeyTests):
    """Turns that nobody takes keep the key for a while only, and end when their patience does."""

    def test_a_turn_that_nobody_takes_keeps_the_key_for_some_wakes(self, key: Key) -> None:
        call(key)
        wake_in_vain(key, WAKES_RESERVED - 1)
        key.refuses("c")

        wake_in_vain(key, 1)

        key.runs("c")

    def test_the_next_is_woken_when_a_turn_keeps_the_key_no_longer(self, key: Key) -> None:
        call(key)
        key.parks("c")

        assert wake_in_vain(key, WAKES_RESERVED - 1) == ["b"]
        assert wake_in_vain(key, 1) == ["b", "c"]

    def test_who_comes_late_to_its_turn_has_the_key_if_nobody_else_has(self, key: Key) -> None:
        call(key)
        wake_in_vain(key, WAKES_RESERVED)

        key.runs("b", wait=QUEUE)

    def test_who_comes_late_to_its_turn_is_next_and_as_patient(self, key: Key) -> None:
        call(key, gives_up=3600)
        key.parks("d")
        wake_in_vain(key, WAKES_RESERVED)
        before = {grant.task: grant.gives_up for grant in key.backend.peek("key").grants}
        key.runs("d", wait=QUEUE)
        key.parks("e")

        key.parks("b", gives_up=3600)

        first = key.backend.peek("key").waiting[0]
        assert (first.task, first.gives_up) == ("b", before["b"])
        assert key.leaves("d") == ["b"]

    def test_a_turn_that_nobody_takes_ends_with_its_patience(self, key: Key) -> None:
        call(key, gives_up=60)
        key.parks("c")
        for _ in range(3):  # at 5, at 15 and at 35 seconds
            wake_in_vain(key, 1)
        key.passes(25 - MICROSECOND)
        assert key.sweeps() == []

        key.passes(MICROSECOND)

        timed_out = Wake("key", "b", message_of("b"), Ending.TIMED_OUT)
        assert key.sweep().wakes == (timed_out, Wake("key", "c", message_of("c")))
        assert key.asks("b", wait=QUEUE) == End(Ending.TIMED_OUT)

    def test_a_turn_that_was_just_woken_may_still_be_taken_in_time(self, key: Key) -> None:
        key.runs("a", ttl=60)
        key.parks("b", gives_up=50)
        key.passes(49)
        assert key.leaves("a") == ["b"]
        key.passes(4)
        assert key.reap() == ()

        key.runs("b", wait=QUEUE)

    def test_nobody_overtakes_a_turn_whose_order_was_promised(self, key: Key) -> None:
        key.runs("a")
        key.parks("b", wait=ENQUEUE, gives_up=7200, ordered=True)
        key.parks("c")
        key.leaves("a")
        wake_in_vain(key, WAKES_RESERVED + 1)
        key.refuses("d")
        assert key.turns == ["b"]

        while not any(grant.ending for grant in key.backend.peek("key").grants):
            wake_in_vain(key, 1)

        assert key.turns == ["b", "c"]

    def test_a_message_of_another_broker_keeps_the_key_for_half_a_minute_or_so(
        self, key: Key
    ) -> None:
        call(key)
        key.parks("c")
        assert hand_back(key, STRANGER_RESERVED // (5 * SECOND) - 1) == []
        key.refuses("d")

        assert hand_back(key, 1) == ["c"]

        key.runs("c", wait=QUEUE)

    def test_a_message_of_another_broker_ends_with_its_patience(self, key: Key) -> None:
        call(key, gives_up=60)

        for times in (13, 1):
            hand_back(key, times)
            (turn,) = key.backend.peek("key").grants
            assert turn.ending is Ending.TIMED_OUT

    def test_a_wake_says_how_often_it_was_made(self, key: Key) -> None:
        call(key)
        for calls in (2, 3, 4):
            key.passes(key.sweep().next_in or 0)

            (wake,) = key.sweep().wakes

            assert wake.woken == calls


GRACE = UNATTENDED / SECOND
AWAY = 10 * 3600.0


def endings(wakes: tuple[Wake, ...]) -> list[tuple[str, Ending | None]]:
    return [(wake.task, wake.ending) for wake in wakes]


class Pausing(KeyTests):
    """While nobody serves a key nobody's patience ends: it is all the time of those who wait."""

    @pytest.fixture
    def unserved(self, key: Key) -> Key:
        """Tasks b, c and d wait for a minute behind a; all workers are gone, for ten hours."""
        key.runs("a", ttl=10)
        key.parks("b", "c", "d", gives_up=60)
        key.passes(AWAY)
        return key

    @pytest.mark.parametrize("outcome", [None, OVER], ids=["a sweep", "a release"])
    def test_a_pause_ends_nobody(self, unserved: Key, outcome: Outcome | None) -> None:
        wakes = unserved.leave("a", outcome).wakes if outcome else unserved.sweep().wakes

        assert endings(wakes) == [("b", None)]
        assert unserved.waiting == ["c", "d"]

    def test_all_who_waited_have_their_turn_after_the_pause(self, unserved: Key) -> None:
        unserved.sweep()
        for task, following in (("b", ["c"]), ("c", ["d"]), ("d", [])):
            unserved.runs(task, wait=QUEUE)
            unserved.passes(5)
            assert unserved.leaves(task) == following
        unserved.runs("e")

        assert unserved.backend.peek("key").paused == 0

    def test_patience_ends_later_by_the_pause(self, unserved: Key) -> None:
        unserved.sweep()
        unserved.runs("b", wait=QUEUE, ttl=3600)
        left = 50 + GRACE  # ten seconds had passed when the key was due, and nobody came
        unserved.passes(left - MICROSECOND)
        assert unserved.sweeps() == []

        unserved.passes(MICROSECOND)

        ended = endings(unserved.sweep().wakes)
        assert ended == [("c", Ending.TIMED_OUT), ("d", Ending.TIMED_OUT)]

    def test_who_comes_after_a_pause_is_as_patient_as_ever(self, unserved: Key) -> None:
        unserved.sweep()
        unserved.runs("b", wait=QUEUE, ttl=3600)
        assert unserved.asks("e", wait=QUEUE, gives_up=20) == Park()
        unserved.passes(20)

        assert endings(unserved.sweep().wakes) == [("e", Ending.TIMED_OUT)]

    def test_a_turn_from_before_a_pause_is_woken_again_and_not_ended(self, key: Key) -> None:
        key.runs("a")
        key.parks("b", gives_up=60)
        assert key.leaves("a", DONE) == ["b"]
        key.passes(AWAY)

        assert endings(key.sweep().wakes) == [("b", None)]

    def test_a_sweep_that_is_a_little_late_is_no_pause(self, key: Key) -> None:
        key.runs("a", ttl=3600)
        key.parks("b", gives_up=60)
        key.passes(60 + GRACE)

        assert endings(key.sweep().wakes) == [("b", Ending.TIMED_OUT)]

    def test_pauses_add_up(self, unserved: Key) -> None:
        for _ in range(3):
            assert unserved.sweep().wakes[0].ending is None
            unserved.passes(AWAY)

        assert all(wake.ending is None for wake in unserved.sweep().wakes)
