"""Who ends without a run: out of patience, out of room, revoked, replaced, or dead-lettered.

What a store shows as well is in the contract over memory; here is what only the rules can show.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_dlock.core.edits import ask_to_give_way
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import Discard
from celery_dlock.core.state import (
    GAVE_WAY,
    WINDOW,
    Busy,
    Cause,
    Claim,
    Dead,
    Drop,
    End,
    Ending,
    EnterVerdict,
    Grant,
    KeyState,
    Left,
    Mode,
    NotHeld,
    OperatorHold,
    Outcome,
    Park,
    Reason,
    Renewed,
    Run,
    Waiting,
    WaitMode,
)
from celery_dlock.core.turns import WAKE_AGAIN_FIRST, WAKE_AGAIN_LAST
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from tests.unit.one_key import PATIENCE, START, TTL, OneKey, claim, kept, place, queued

LONG = 100 * WAKE_AGAIN_LAST
MINUTE = 60_000_000


@pytest.fixture
def key() -> OneKey:
    """A key that a holds for long."""
    key = OneKey()
    key.enter(queued("a", ttl=LONG))
    return key


# Patience.


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


def test_a_turn_that_nobody_took_once_ends_when_its_patience_is_over(key: OneKey) -> None:
    key.enter(queued("b", gives_up=MINUTE))
    key.leave(queued("a", ttl=LONG))
    assert (key.wakes, key.endings) == (["b"], {})
    (turn,) = key.state.grants
    key.state = replace(key.state, grants=(replace(turn, due=key.now + MINUTE),))
    key.passes(MINUTE)

    key.reap()

    assert key.endings == {"b": Ending.TIMED_OUT}


def test_a_hold_lasts_when_a_lease_expires_under_it(key: OneKey) -> None:
    hold = OperatorHold("h", "ann", "why", key.now, key.now + 2 * LONG)
    key.state = replace(key.state, hold=hold)
    key.passes(LONG)

    key.reap()

    assert (key.running, key.state.hold) == ([], hold)


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


def grant(task: str, **more: Any) -> Grant:
    return Grant(**{**_turn_of(task), **more})


def _turn_of(task: str) -> dict[str, Any]:
    given = {"task": task, "mode": Mode.EXCLUSIVE, "limit": 9, "parked": True, "woken": 1}
    return {**given, "due": START + LONG}


def test_of_those_whose_turn_has_come_only_other_tasks_that_are_to_run_give_way() -> None:
    turns = (
        grant("b:0:0"),
        grant("place:0:0", parked=False),
        grant("ends:0:0", ending=Ending.TIMED_OUT),
        grant("gave way:0:0", parked=False, ending=Ending.DROPPED),
        grant("n:1:0"),  # another attempt of the newer one
    )

    after = ask_to_give_way(KeyState(grants=turns), newest("n:0:0"))

    replaced = {"b:0:0", "place:0:0"}
    assert [(g.by, g.by_name) for g in after.grants] == [
        ("n:0:0", "sync") if g.task in replaced else ("", "") for g in turns
    ]


def test_a_replaced_task_has_a_turn_to_end_as_it_was_held() -> None:
    key, mine = OneKey(), newest("a:0:0", limit=2)
    key.enter(mine)
    key.enter(queued("x:0:0", limit=2))
    key.enter(newest("n:0:0", limit=2))

    key.leave(mine, Outcome.ABANDONED)

    ends = Grant(
        *("a:0:0", Mode.LIMITED, 2, False, 0, key.now + GAVE_WAY, Ending.DROPPED), by="n:0:0"
    )
    assert ends in key.state.grants


def test_the_message_that_the_store_has_of_a_replaced_task_ends_by_the_newer_one() -> None:
    key, mine = OneKey(), newest("a:0:0", keep=True)
    key.enter(mine)
    key.enter(newest("n:0:0"))

    key.passes(TTL)
    key.reap()

    assert key.endings == {"a:0:0": Ending.DROPPED}
    assert key.enter(newest("a:0:0", "woken", keep=True)) == End(Ending.DROPPED, "n:0:0")


def _runs_already(key: OneKey) -> None:
    key.enter(newest("n:0:0", "first", limit=2, supersedes=False))


def _has_its_turn(key: OneKey) -> None:
    key.state = replace(key.state, grants=(grant("n:0:0", limit=1),))


def _has_a_place(key: OneKey) -> None:
    key.enter(place("n:0:0", limit=2))


def _lost_a_run(key: OneKey) -> None:
    key.state = replace(key.state, lost=(("n:0:0", 1),))


@pytest.mark.parametrize("came", [_runs_already, _has_its_turn, _has_a_place, _lost_a_run])
def test_who_has_come_before_replaces_nobody(came: Any) -> None:
    key = OneKey()
    key.enter(newest("a:0:0", limit=2))
    if came is not _runs_already:
        key.enter(queued("x:0:0", limit=2))
    came(key)

    assert isinstance(key.enter(newest("n:0:0", "again", limit=2)), Park)

    assert {holder.replaced_by for holder in key.state.holders if holder.task == "a:0:0"} == {""}


# Nobody heard that it had the key.


def test_a_turn_of_which_nobody_heard_is_kept_for_its_task_and_counts_as_a_start() -> None:
    key = OneKey()
    key.enter(queued("a"))
    key.passes(1)

    assert key.leave(queued("a", begun=False), Outcome.REPEAT) == Left(carried=True)

    turn = Grant("a", Mode.EXCLUSIVE, 1, True, 1, key.now + PATIENCE, arrived=key.now)
    assert key.state == KeyState(grants=(turn,), lost=(("a", 1),))


def test_with_its_turn_goes_a_place_of_another_delivery(key: OneKey) -> None:
    key.enter(place("a", "other"))
    key.state = replace(
        key.state, waiting=(Waiting("a", Mode.EXCLUSIVE, 0, key.now, key.now + LONG),)
    )

    key.leave(queued("a", begun=False), Outcome.REPEAT)

    assert (key.waiting, key.woken) == ([], ["a"])


def test_on_hold_it_waits_as_the_first(key: OneKey) -> None:
    for task in "bc":
        key.enter(queued(task))
    hold = OperatorHold("h", "ann", "why", key.now, key.now + LONG)
    key.state = replace(key.state, hold=hold)

    key.leave(queued("a", begun=False), Outcome.REPEAT)

    assert (key.waiting, key.woken) == (["a", "b", "c"], [])


def test_no_turn_is_kept_for_what_a_duplicate_has_done(key: OneKey) -> None:
    key.state = replace(key.state, done=frozenset({"a"}))

    key.leave(queued("a", begun=False), Outcome.REPEAT)

    assert (key.waiting, key.woken) == ([], [])


def test_who_says_again_that_it_is_done_is_believed_if_that_is_known() -> None:
    done = queued("a", again=True, done_ttl=1)

    assert OneKey().leave(done) == NotHeld(carried=True)

    key = OneKey()
    key.state = KeyState(done=frozenset({"a"}))
    assert key.leave(done) == Left(carried=True)


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
def test_a_body_that_always_loses_its_lock_is_dead_lettered(wait: WaitMode, keep: bool) -> None:
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
        pytest.param(
            _runs_are_lost, WaitMode.LOOK, Busy(None, 0, 0), id="comes without its message"
        ),
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


# A dead letter, and what a person does with it.


def dead_of(key: OneKey, task: str = "a", cause: Cause = Cause.UNREADABLE) -> None:
    """*task* is on the list of dead letters; b waits, and the key is free since a moment."""
    waits = Waiting("b", Mode.EXCLUSIVE, 1, key.now, None)
    dead = Dead(task, Mode.EXCLUSIVE, cause, key.now)
    key.state, key.dead = KeyState(waiting=(waits,), parked=1, last=1), {task: dead}


def test_a_dead_letter_that_has_run_is_not_replayed_and_whoever_is_next_is_woken() -> None:
    key = OneKey()
    dead_of(key)
    key.state = replace(key.state, done=frozenset({"a"}))

    assert not key.replay("a")

    assert key.wakes == ["b"]


def test_a_dead_letter_waits_behind_the_others_from_now_on() -> None:
    key = OneKey()
    dead_of(key)
    key.passes(7)

    assert key.replay("a")

    assert (key.wakes, key.waiting) == (["b"], ["a"])
    assert key.state.waiting[0].arrived == key.now


def test_a_dead_letter_of_which_another_message_waits_is_not_put_back() -> None:
    key = OneKey()
    dead_of(key, "b")

    assert key.replay("b")

    assert (key.wakes, key.waiting, key.state.parked) == (["b"], [], 0)


@pytest.mark.parametrize("done_ttl", [0, 1])
def test_a_discarded_letter_is_done_for_as_long_as_is_said_and_whoever_is_next_is_woken(
    done_ttl: int,
) -> None:
    key = OneKey()
    dead_of(key)
    before = replace(key.state, dead=(key.dead["a"],))

    step = Discard("key", "a", done_ttl).apply(before, key.now)

    assert step.verdict
    assert step.state.done == ({"a"} if done_ttl else frozenset())
    assert [turn.task for turn in step.wakes] == ["b"]
