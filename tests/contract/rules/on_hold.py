"""A person keeps a key closed for a while: nobody new gets it, and who has it goes on."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import (
    Busy,
    Ending,
    KeyState,
    Left,
    OperatorHold,
    Outcome,
    Park,
    Renewed,
)
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract.words import (
    DAY,
    PLACE,
    QUEUE,
    SECOND,
    SHARED,
    StoreUnderTest,
    claim,
    listed_keys,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock

HOUR = 3600 * SECOND

FIRST, SECOND_ONE = "first", "second"

WHO, WHY = "alice@ops1", 'the ledger: is it {17} "right"? \u2620'


def put_on_hold(
    backend: LockBackend, was: str = "", name: str = FIRST, by: str = WHO, lasts: int = HOUR
) -> bool:
    """Put the key on hold for an hour; whether it is."""
    reply = backend.put_on_hold("key", was, name, by, WHY, lasts)
    return reply.verdict


class Holds(StoreUnderTest):
    """It closes the key with all its slots, until its time is over or a person ends it."""

    def test_nobody_gets_the_key_and_all_are_told_who_keeps_it_and_why(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        hold = OperatorHold(FIRST, WHO, WHY, clock(), clock() + HOUR)

        assert put_on_hold(backend)

        for other in (
            claim("a"),
            claim("b", limit=9),
            claim("c", mode=SHARED),
            claim("d", wait=PLACE),
        ):
            assert backend.enter(other).verdict == Busy(None, HOUR, 0, hold=hold)
        waits = backend.enter(claim("e", wait=QUEUE), b"message").verdict
        assert isinstance(waits, Park)
        assert waits.hold == hold
        for state in (backend.peek("key"), *backend.look(["key"])):
            assert (state.hold, state.grants) == (hold, ())
        assert listed_keys(backend) == ["key"]

    def test_who_has_it_goes_on_and_is_the_last_for_a_while(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        mine = claim("a", limit=2, keep=True, wait=QUEUE)
        run = running(backend.enter(mine, b"message of a"))

        assert put_on_hold(backend)

        assert backend.renew([mine]) == [Renewed(clock() + 10 * SECOND)]
        assert running(backend.enter(mine)) == run
        refused = backend.enter(claim("b", limit=2)).verdict
        assert isinstance(refused, Busy)
        assert refused.holder is not None
        assert (refused.holder.task, refused.left) == ("a", HOUR)
        assert isinstance(backend.leave(mine, Outcome.DONE).verdict, Left)
        assert isinstance(backend.enter(claim("b")).verdict, Busy)

    def test_who_waits_is_woken_when_it_ends_by_itself(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", ttl=DAY)))
        park(backend, "b", "c")
        assert put_on_hold(backend)
        assert backend.leave(claim("a"), Outcome.DONE).wakes == ()
        swept = backend.sweep()
        assert (swept.wakes, swept.next_in) == ((), 3600.0)

        clock.advance(3600)

        assert woken(backend.sweep()) == ["b"]
        running(backend.enter(claim("b", wait=QUEUE), b"message of b"))

    def test_and_at_once_when_a_person_ends_it(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        put_on_hold(backend)
        park(backend, "b", "c")

        reply = backend.put_on_hold("key", FIRST, "", "", "", 0)

        assert (reply.verdict, woken(reply)) == (True, ["b"])
        assert [turn.task for turn in backend.peek("key").grants] == ["b"]

    def test_whose_turn_had_come_is_the_first_afterwards(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b", "c")
        assert woken(backend.leave(claim("a"), Outcome.DONE)) == ["b"]
        put_on_hold(backend)

        waits = backend.enter(claim("b", wait=QUEUE), b"message of b").verdict

        assert isinstance(waits, Park)
        assert waits.hold is not None
        assert woken(backend.put_on_hold("key", FIRST, "", "", "", 0)) == ["b"]

    def test_only_the_hold_that_was_shown_is_replaced_or_ended(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        began = clock()
        put_on_hold(backend)
        clock.advance(60)
        assert not put_on_hold(backend, "", SECOND_ONE, "bob")
        assert put_on_hold(backend, FIRST, SECOND_ONE, "bob", lasts=60 * SECOND)

        assert not backend.put_on_hold("key", FIRST, "", "", "", 0).verdict

        hold = backend.peek("key").hold
        assert hold == OperatorHold(SECOND_ONE, "bob", WHY, began, clock() + 60 * SECOND)
        clock.advance(60)
        running(backend.enter(claim("a")))

    def test_who_did_not_hear_the_answer_asks_again(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        put_on_hold(backend)
        before = backend.peek("key")
        clock.advance(1)

        assert put_on_hold(backend)

        assert backend.peek("key") == before
        for _ in range(2):
            assert backend.put_on_hold("key", FIRST, "", "", "", 0).verdict
        running(backend.enter(claim("a")))

    def test_of_a_key_that_was_on_hold_nothing_stays(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        put_on_hold(backend)
        assert backend.sweep().next_in == 3600.0
        clock.advance(3600)

        assert backend.sweep().next_in is None

        assert listed_keys(backend) == []
        assert backend.peek("key") == KeyState()

    @pytest.mark.parametrize("ended", ["by itself", "by a person", "replaced"])
    def test_its_time_does_not_count_for_those_who_wait(
        self, backend: LockBackend, clock: ManualClock, ended: str
    ) -> None:
        running(backend.enter(claim("a", ttl=DAY)))
        park(backend, "before", gives_up=60)
        clock.advance(20)
        put_on_hold(backend, lasts=2 * HOUR if ended == "by a person" else HOUR)
        clock.advance(1800)
        park(backend, "meanwhile", gives_up=60)
        if ended == "replaced":
            put_on_hold(backend, FIRST, SECOND_ONE, lasts=HOUR)
            clock.advance(1800)
        clock.advance(1800)
        if ended == "by a person":
            backend.put_on_hold("key", FIRST, "", "", "", 0)
        assert backend.sweep().wakes == ()
        clock.advance(39.999_999)
        assert backend.sweep().wakes == ()

        for task, later in (("before", 0.000_001), ("meanwhile", 20)):
            clock.advance(later)
            (wake,) = backend.sweep().wakes
            assert (wake.task, wake.ending) == (task, Ending.TIMED_OUT)
            backend.leave(claim(task), Outcome.DONE)

    def test_it_is_of_one_key(self, backend: LockBackend, stranger: LockBackend) -> None:
        put_on_hold(backend)

        running(backend.enter(claim("a", key="other")))
        running(stranger.enter(claim("a")))
