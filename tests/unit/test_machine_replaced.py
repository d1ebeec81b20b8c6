"""The newest of a task wins over the one that runs, which is asked to stop first."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.state import (
    GAVE_WAY,
    Busy,
    Claim,
    Drop,
    End,
    Ending,
    Left,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Renewed,
    Replaced,
    Run,
)
from tests.unit.one_key import TTL, OneKey, claim, kept, published, queued


def newest(task: str, nonce: str = "1", **options: Any) -> Claim:
    """The claim of a task whose newest wins."""
    given = {"max_waiting": 1, "drop_oldest": True, "gives_way": True, "supersedes": True}
    return queued(task, nonce, **{"name": "sync", **given, **options})


A, B, C = newest("a:0:0"), newest("b:0:0"), newest("c:0:0")


@pytest.fixture
def key() -> OneKey:
    key = OneKey()
    key.enter(A)
    return key


def test_who_runs_is_asked_by_the_newest(key: OneKey) -> None:
    assert key.renew(A) == Renewed(key.now + TTL)

    assert key.enter(B) == Park()

    assert key.renew(A) == Replaced("b:0:0")


def test_the_newest_one_overwrites_who_asked(key: OneKey) -> None:
    key.enter(B)
    key.enter(C)

    assert key.renew(A) == Replaced("c:0:0")
    assert key.waiting == ["c:0:0"]
    assert key.endings == {}


def test_it_leaves_and_the_next_one_is_woken_at_once(key: OneKey) -> None:
    key.enter(B)

    assert key.leave(A) == Left(carried=True)

    assert key.wakes == ["b:0:0"]
    assert key.enter(B) == Run(0, 3)
    assert key.enter(newest("a:0:0", "again")) == Drop(Reason.DONE)


def test_its_lease_ends_a_ttl_after_its_last_renewal(key: OneKey) -> None:
    key.enter(B)
    key.passes(TTL - 1)
    key.renew(A)
    key.reap()
    assert key.running == ["a:0:0"]

    key.passes(1)
    key.reap()

    assert key.wakes == ["b:0:0"]
    assert key.running == []
    assert key.renew(A) == NotHeld()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(newest("b:0:0", name="refund"), id="another task"),
        pytest.param(newest("a:1:0"), id="its own retry"),
        pytest.param(newest("a:0:0", "copy"), id="its own copy"),
        pytest.param(newest("b:0:0", supersedes=False), id="one that has come before"),
    ],
)
def test_not_everybody_may_ask(key: OneKey, other: Claim) -> None:
    key.enter(other)

    assert key.renew(A) == Renewed(key.now + TTL)


def test_whoever_need_not_give_way_is_not_asked() -> None:
    key = OneKey()
    mine = claim("lock():0:0", name="sync")
    key.enter(mine)

    key.enter(B)

    assert key.renew(mine) == Renewed(key.now + TTL)


def test_one_that_has_lost_a_run_waits_and_replaces_nobody(key: OneKey) -> None:
    key.leave(A, Outcome.ABANDONED)
    key.enter(B)

    assert key.enter(newest("a:0:0", "again")) == Park()

    assert key.renew(B) == Renewed(key.now + TTL)


def test_a_message_that_is_parked_without_a_worker_slot_asks_too(key: OneKey) -> None:
    key.enter(published("b:0:0", name="sync", supersedes=True, gives_way=True))

    assert key.renew(A) == Replaced("b:0:0")


def test_a_turn_that_has_come_and_is_not_taken_gives_way_too(key: OneKey) -> None:
    key.enter(B)
    key.leave(A)
    assert key.wakes == ["b:0:0"]

    key.enter(C)

    assert key.enter(B) == End(Ending.DROPPED, "c:0:0")
    assert key.wakes == ["c:0:0"]
    assert key.leave(B) == NotHeld(carried=True)
    assert key.enter(C) == Run(0, 5)


def test_but_not_that_of_another_task(key: OneKey) -> None:
    refund = newest("b:0:0", name="refund")
    key.enter(refund)
    key.leave(A)
    key.enter(C)

    assert key.enter(refund) == Run(0, 4)


@pytest.mark.parametrize("outcome", [Outcome.REPEAT, Outcome.UNUSED, Outcome.ABANDONED])
def test_it_does_not_run_again_however_it_leaves(key: OneKey, outcome: Outcome) -> None:
    key.enter(B)

    key.leave(A, outcome)

    again = newest("a:0:0", "again")
    assert key.enter(again) == End(Ending.DROPPED, "b:0:0")
    assert key.state.lost == ()
    key.leave(again)
    assert key.enter(newest("a:0:0", "third")) == Drop(Reason.DONE)


def test_a_message_that_it_leaves_there_is_woken_to_its_end(key: OneKey) -> None:
    key.enter(B)

    assert key.leave(A, Outcome.REPEAT) == Left(carried=True)

    assert key.endings == {"a:0:0": Ending.DROPPED}
    assert sorted(key.wakes) == ["a:0:0", "b:0:0"]


def test_so_is_one_whose_lease_has_ended_before_it_left(key: OneKey) -> None:
    key.enter(B)
    key.passes(TTL)
    key.reap()
    key.enter(B)

    assert key.leave(A, Outcome.REPEAT) == NotHeld(carried=True)

    assert key.endings == {"a:0:0": Ending.DROPPED}
    assert key.running == ["b:0:0"]


def test_a_copy_that_waits_behind_it_is_woken_to_its_end() -> None:
    key = OneKey()
    first = newest("a:0:0", keep=True)
    key.enter(first)
    key.enter(B)
    key.passes(TTL)

    key.reap()

    assert key.endings == {"a:0:0": Ending.DROPPED}
    assert key.enter(kept("a:0:0", "again")) == End(Ending.DROPPED, "b:0:0")


def test_that_its_lease_has_ended_is_no_lost_run(key: OneKey) -> None:
    key.enter(B)
    key.passes(TTL)
    key.reap()

    assert key.state.lost == ()
    assert key.enter(newest("a:0:0", "redelivered")) == End(Ending.DROPPED, "b:0:0")


def test_who_dies_while_it_ends_ends_once_more(key: OneKey) -> None:
    key.enter(B)
    key.leave(A, Outcome.ABANDONED)

    for nonce in ("one", "two"):
        assert key.enter(newest("a:0:0", nonce)) == End(Ending.DROPPED, "b:0:0")


def test_it_is_forgotten_after_a_day_and_keeps_nobody_out(key: OneKey) -> None:
    key.enter(B)
    key.leave(A, Outcome.ABANDONED)
    key.enter(B)
    key.leave(B)
    assert key.due_in() == GAVE_WAY
    assert key.enter(claim("x:0:0")) == Run(0, 4)
    key.leave(claim("x:0:0"))

    key.passes(GAVE_WAY)
    key.reap()

    assert key.due_in() is None
    assert key.woken == []


def test_what_it_came_to_by_itself_stands(key: OneKey) -> None:
    key.enter(B)
    key.passes(TTL)
    key.reap()

    assert key.leave(A) == NotHeld(carried=True)

    assert key.enter(newest("a:0:0", "again")) == Drop(Reason.DONE)


def test_who_does_not_wait_replaces_nobody(key: OneKey) -> None:
    verdict = key.enter(claim("b:0:0", name="sync", gives_way=True, supersedes=True))

    assert isinstance(verdict, Busy)
    assert key.renew(A) == Renewed(key.now + TTL)
