"""A person keeps a key closed for a while: nobody new gets it, and who has it goes on."""

from __future__ import annotations

import pytest

from celery_dlock.core.operations import PutOnHold
from celery_dlock.core.state import Busy, Ending, KeyState, Left, OperatorHold, Park, Renewed
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract.words import (
    DAY,
    PLACE,
    QUEUE,
    SECOND,
    SHARED,
    claim,
    listed_keys,
    running,
    woken,
)
from tests.contract.key import MICROSECOND, Key, KeyTests

HOUR = 3600 * SECOND

FIRST, SECOND_ONE = "first", "second"

WHO, WHY = "alice@ops1", 'the ledger: is it {17} "right"? \u2620'


def put_on_hold(
    key: Key, was: str = "", name: str = FIRST, by: str = WHO, lasts: int = HOUR
) -> bool:
    """Put the key on hold for an hour; whether it is."""
    return key.backend.apply(PutOnHold("key", was, name, by, WHY, lasts)).verdict


def end_hold(key: Key) -> list[str] | None:
    """End the first hold; who is woken, ``None`` if that is not the hold."""
    reply = key.backend.apply(PutOnHold("key", FIRST, "", "", "", 0))
    return woken(reply) if reply.verdict else None


class Holds(KeyTests):
    """It closes the key with all its slots, until its time is over or a person ends it."""

    def test_nobody_gets_the_key_and_all_are_told_who_keeps_it_and_why(self, key: Key) -> None:
        hold = OperatorHold(FIRST, WHO, WHY, key.clock(), key.clock() + HOUR)

        assert put_on_hold(key)

        for terms in ({}, {"limit": 9}, {"mode": SHARED}, {"wait": PLACE}):
            assert key.asks("a", **terms) == Busy(None, HOUR, 0, hold=hold)
        waits = key.asks("e", wait=QUEUE)
        assert isinstance(waits, Park)
        assert waits.hold == hold
        for state in (key.backend.peek("key"), *key.backend.look(["key"])):
            assert (state.hold, state.grants) == (hold, ())
        assert listed_keys(key.backend) == ["key"]

    def test_who_has_it_goes_on_and_is_the_last_for_a_while(self, key: Key) -> None:
        run = key.runs("a", limit=2, keep=True, wait=QUEUE)

        assert put_on_hold(key)

        assert key.renews("a", limit=2, keep=True) == Renewed(key.clock() + 10 * SECOND)
        assert key.runs("a", limit=2, keep=True, wait=QUEUE) == run
        refused = key.refuses("b", limit=2)
        assert refused.holder is not None
        assert (refused.holder.task, refused.left) == ("a", HOUR)
        assert isinstance(key.leave("a", limit=2, keep=True).verdict, Left)
        key.refuses("b")

    def test_who_waits_is_woken_when_it_ends_by_itself(self, key: Key) -> None:
        key.runs("a", ttl=DAY)
        key.parks("b", "c")
        assert put_on_hold(key)
        assert key.leaves("a") == []
        assert (key.sweeps(), key.sweep().next_in) == ([], 3600.0)

        key.passes(3600)

        assert key.sweeps() == ["b"]
        key.runs("b", wait=QUEUE)

    def test_and_at_once_when_a_person_ends_it(self, key: Key) -> None:
        put_on_hold(key)
        key.parks("b", "c")

        assert end_hold(key) == ["b"]

        assert key.turns == ["b"]

    def test_whose_turn_had_come_is_the_first_afterwards(self, key: Key) -> None:
        key.runs("a")
        key.parks("b", "c")
        assert key.leaves("a") == ["b"]
        put_on_hold(key)

        waits = key.asks("b", wait=QUEUE)

        assert isinstance(waits, Park)
        assert waits.hold is not None
        assert end_hold(key) == ["b"]

    def test_only_the_hold_that_was_shown_is_replaced_or_ended(self, key: Key) -> None:
        began = key.clock()
        put_on_hold(key)
        key.passes(60)
        assert not put_on_hold(key, "", SECOND_ONE, "bob")
        assert put_on_hold(key, FIRST, SECOND_ONE, "bob", lasts=60 * SECOND)

        assert end_hold(key) is None

        hold = key.backend.peek("key").hold
        assert hold == OperatorHold(SECOND_ONE, "bob", WHY, began, key.clock() + 60 * SECOND)
        key.passes(60)
        key.runs("a")

    def test_who_did_not_hear_the_answer_asks_again(self, key: Key) -> None:
        put_on_hold(key)
        before = key.backend.peek("key")
        key.passes(1)

        assert put_on_hold(key)

        assert key.backend.peek("key") == before
        for _ in range(2):
            assert end_hold(key) == []
        key.runs("a")

    def test_of_a_key_that_was_on_hold_nothing_stays(self, key: Key) -> None:
        put_on_hold(key)
        assert key.sweep().next_in == 3600.0
        key.passes(3600)

        assert key.sweep().next_in is None

        assert listed_keys(key.backend) == []
        assert key.backend.peek("key") == KeyState()

    @pytest.mark.parametrize("ended", ["by itself", "by a person", "replaced"])
    def test_its_time_does_not_count_for_those_who_wait(self, key: Key, ended: str) -> None:
        key.runs("a", ttl=DAY)
        key.parks("before", gives_up=60)
        key.passes(20)
        put_on_hold(key, lasts=2 * HOUR if ended == "by a person" else HOUR)
        key.passes(1800)
        key.parks("meanwhile", gives_up=60)
        if ended == "replaced":
            put_on_hold(key, FIRST, SECOND_ONE, lasts=HOUR)
            key.passes(1800)
        key.passes(1800)
        if ended == "by a person":
            end_hold(key)
        assert key.sweeps() == []
        key.passes(40 - MICROSECOND)
        assert key.sweeps() == []

        for task, later in (("before", MICROSECOND), ("meanwhile", 20)):
            key.passes(later)
            (wake,) = key.sweep().wakes
            assert (wake.task, wake.ending) == (task, Ending.TIMED_OUT)
            key.leaves(task)

    def test_it_is_of_one_key(self, key: Key, stranger: LockBackend) -> None:
        put_on_hold(key)

        running(key.backend.enter(claim("a", key="other")))
        running(stranger.enter(claim("a")))
