"""Who ends without a run: out of patience, out of room, revoked, replaced, or dead-lettered.

What a store shows as well is in the contract over memory; here is what only the rules can show.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Claim,
    Drop,
    End,
    Ending,
    EnterVerdict,
    Left,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Renewed,
    Run,
    WaitMode,
)
from celery_dlock.core.turns import WAKE_AGAIN_FIRST, WAKE_AGAIN_LAST
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from tests.unit.one_key import TTL, OneKey, claim, kept, place, queued

LONG = 100 * WAKE_AGAIN_LAST
MINUTE = 60_000_000


@pytest.fixture
def key() -> OneKey:
    """A key that a holds for long."""
    key = OneKey()
    key.enter(queued("a", ttl=LONG))
    return key


# Patience.


def test_one_that_gets_more_time_waits_as_the_first_for_so_long_and_no_longer(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.enter(queued("c"))
    key.passes(MINUTE)
    key.reap()

    assert key.enter(queued("b", "late", gives_up=MINUTE, more_time=5)) == Park()

    assert key.waiting == ["b", "c"]
    assert key.state.waiting[0].arrived == key.now - MINUTE
    for passed, endings in ((0, {}), (4, {}), (1, {"b": Ending.TIMED_OUT})):
        key.passes(passed)
        key.reap()
        assert key.endings == endings


def test_only_the_delivery_that_ends_it_gets_more_time_and_only_if_its_time_was_up(
    key: OneKey,
) -> None:
    _time_out(key, "b")
    assert key.enter(queued("b", "first", gives_up=MINUTE)) == End(Ending.TIMED_OUT)

    assert key.enter(queued("b", "other", more_time=5)) == Drop(Reason.WAITING)

    key.enter(queued("c"))
    key.cancel("c")
    assert key.enter(queued("c", more_time=5)) == End(Ending.REVOKED)


def test_its_patience_ends_later_by_what_nobody_was_there(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.state = replace(key.state, paused=LONG)
    key.leave(queued("a"))

    for wait in (WAKE_AGAIN_FIRST, 2 * WAKE_AGAIN_FIRST, 4 * WAKE_AGAIN_FIRST):
        assert key.due_in() == wait
        key.passes(wait)
        key.reap()


def test_a_place_is_never_ended(key: OneKey) -> None:
    key.enter(place("b", gives_up=MINUTE, patience=LONG))
    key.passes(MINUTE)

    key.reap()

    assert (key.wakes, key.waiting) == ([], ["b"])


def test_an_ending_that_was_taken_is_not_handed_back(key: OneKey) -> None:
    _time_out(key, "b")
    key.enter(queued("b", "one"))
    before = key.state

    assert key.hand_back("b") is True

    assert key.state == before


def test_an_ending_that_another_delivery_took_over_is_not_the_first_ones_again(key: OneKey) -> None:
    _time_out(key, "b")
    key.enter(queued("b", "one", ttl=TTL))
    key.passes(TTL)
    key.reap()

    assert key.enter(queued("b", "two")) == End(Ending.TIMED_OUT)

    assert key.enter(queued("b", "one")) == Drop(Reason.WAITING)


def test_leaving_a_key_whose_endings_are_open_does_not_end_them(key: OneKey) -> None:
    _time_out(key, "b")

    assert key.leave(queued("a"), Outcome.OVER) == Left(carried=False)

    assert (key.woken, key.due_in()) == (["b"], WAKE_AGAIN_FIRST)


def test_a_key_is_due_when_something_is_to_be_done_without_anybody_coming(key: OneKey) -> None:
    assert key.due_in() is None
    key.enter(place("p", patience=LONG))
    assert key.due_in() is None
    key.enter(queued("b"))
    assert key.due_in() == LONG  # when the holder has died
    key.enter(queued("c", gives_up=MINUTE))
    assert key.due_in() == MINUTE
    key.enter(queued("p"))  # its place is a message now
    key.leave(queued("a"))
    assert (key.woken, key.due_in()) == (["p"], WAKE_AGAIN_FIRST)


# Room.


def test_the_duplicate_of_a_running_task_neither_counts_nor_makes_room(key: OneKey) -> None:
    key.enter(queued("a", "copy"))
    for task in "bc":
        assert key.enter(queued(task, max_waiting=1, drop_oldest=True)) == Park()

    assert key.endings == {"b": Ending.DROPPED}
    assert key.waiting == ["a", "c"]


def test_who_had_started_is_taken_although_it_is_full() -> None:
    key = OneKey()
    key.enter(queued("a"))
    key.enter(queued("b"))
    key.passes(TTL)
    key.reap()
    key.enter(queued("b", "woken"))
    key.enter(queued("c"))

    assert key.enter(queued("a", "again", max_waiting=1, drop_oldest=True)) == Park()

    assert (key.endings, key.waiting) == ({}, ["a", "c"])


def test_a_full_queue_of_places_and_nobody_to_make_room_is_full(key: OneKey) -> None:
    for n in range(WINDOW):
        key.enter(place(f"p{n}", patience=LONG))
    key.enter(queued("b"))
    # As a store loads it: the message stands behind the window
    key.state = replace(key.state, waiting=key.state.waiting[:WINDOW])

    verdict = key.enter(queued("c", max_waiting=1, drop_oldest=True))

    assert isinstance(verdict, Busy)
    assert verdict.full


# Revoked.


def test_an_ending_stays_what_it_was_though_it_is_revoked(key: OneKey) -> None:
    _time_out(key, "b")

    assert key.cancel("b")

    assert key.enter(queued("b", "woken")) == End(Ending.TIMED_OUT)


def test_a_kept_message_whose_run_was_lost_is_revoked() -> None:
    key = OneKey()
    key.enter(kept("a"))
    key.passes(TTL)

    assert key.cancel("a")

    assert key.endings == {"a": Ending.REVOKED}


def test_whatever_else_is_due_is_woken_when_one_is_revoked(key: OneKey) -> None:
    key.enter(queued("b"))
    key.enter(queued("c"))
    key.passes(LONG)

    key.cancel("c")

    assert (key.wakes, key.endings) == (["c", "b"], {"c": Ending.REVOKED})


# Replaced.


def newest(task: str, nonce: str = "1", **options: Any) -> Claim:
    """The claim of a task whose newest wins."""
    given = {"max_waiting": 1, "drop_oldest": True, "gives_way": True, "supersedes": True}
    return queued(task, nonce, **{"name": "sync", **given, **options})


def test_what_a_replaced_task_came_to_by_itself_counts() -> None:
    key, mine, newer = OneKey(), newest("a:0:0"), newest("b:0:0")
    key.enter(mine)
    key.enter(newer)
    key.passes(TTL)
    key.reap()

    assert key.leave(mine) == NotHeld(carried=True)

    assert key.enter(newest("a:0:0", "again")) == Drop(Reason.DONE)


def test_who_does_not_wait_replaces_nobody() -> None:
    key, mine = OneKey(), newest("a:0:0")
    key.enter(mine)

    verdict = key.enter(claim("b:0:0", name="sync", gives_way=True, supersedes=True))

    assert isinstance(verdict, Busy)
    assert key.renew(mine) == Renewed(key.now + TTL)


# Dead-lettered.


def test_an_ending_that_nobody_can_read_is_dead_lettered_too(key: OneKey) -> None:
    key.enter(queued("b"))
    key.cancel("b")
    for _ in range(WAKES_BEFORE_DEAD - 1):
        key.passes(WAKE_AGAIN_LAST)
        key.reap()

    assert key.dead_letter("b")

    assert key.woken == []


@pytest.mark.parametrize("wait", [WaitMode.QUEUE, WaitMode.LOOK])
@pytest.mark.parametrize("keep", [False, True])
def test_a_body_that_loses_its_lock_again_and_again_is_dead_lettered(
    wait: WaitMode, keep: bool
) -> None:
    key = OneKey()
    for n in range(MAX_LOST_RUNS):
        mine = claim("a", str(n), wait=wait, keep=keep)
        assert isinstance(key.enter(mine), Run)
        assert key.leave(mine, Outcome.REPEAT) == Left(carried=True)
        assert key.wakes == ["a"]

    assert key.enter(queued("a", "once more")) == Drop(Reason.DEAD)


def _runs_are_lost(key: OneKey) -> None:
    for n in range(MAX_LOST_RUNS):
        key.enter(queued("a", str(n)))
        key.passes(TTL)


def _is_revoked(key: OneKey) -> None:
    for n in range(MAX_LOST_RUNS):
        key.enter(kept("a", str(n)))
        key.leave(kept("a", str(n)), Outcome.ABANDONED)
    assert key.cancel("a")


def _runs_again(key: OneKey) -> None:
    _runs_are_lost(key)
    key.enter(claim("a", "by a worker whose version leaves no message"))


def _is_dead_lettered(key: OneKey) -> None:
    _runs_are_lost(key)
    key.enter(queued("a", "once more"))


@pytest.mark.parametrize(
    ("before", "wait", "verdict"),
    [
        pytest.param(_runs_are_lost, WaitMode.LOOK, Drop(Reason.DEAD), id="says first"),
        pytest.param(_runs_are_lost, WaitMode.NOT, Run(0, MAX_LOST_RUNS + 1), id="has no message"),
        pytest.param(_is_revoked, WaitMode.QUEUE, End(Ending.REVOKED), id="is revoked"),
        pytest.param(_runs_again, WaitMode.QUEUE, Park(), id="runs"),
        pytest.param(_is_dead_lettered, WaitMode.QUEUE, Drop(Reason.DEAD), id="is dead"),
    ],
)
def test_a_task_whose_runs_were_lost_is_dead_lettered_only_in_place_of_another_run(
    before: Any, wait: WaitMode, verdict: EnterVerdict
) -> None:
    key = OneKey()
    before(key)

    assert key.enter(claim("a", "comes", wait=wait)) == verdict


def test_a_task_that_finished_in_between_is_not_dead_lettered() -> None:
    key = OneKey()
    for n in range(2 * MAX_LOST_RUNS):
        mine = queued("a", str(n), done_ttl=0)
        assert isinstance(key.enter(mine), Run)
        key.leave(mine, Outcome.DONE if n % 5 == 0 else Outcome.ABANDONED)


def test_lost_runs_are_forgotten_at_a_replay_of_what_is_not_dead() -> None:
    key = OneKey()
    _runs_are_lost(key)

    assert not key.replay("a")

    assert key.state.lost == ()
    assert isinstance(key.enter(queued("a", "again")), Run)


def _time_out(key: OneKey, task: str) -> None:
    key.enter(queued(task, gives_up=MINUTE))
    key.passes(MINUTE)
    key.reap()
    assert key.endings == {task: Ending.TIMED_OUT}
