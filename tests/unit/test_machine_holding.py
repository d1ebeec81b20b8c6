"""Who holds: leases, slots, readers, and a limit or a mode that another version has changed.

What a store shows as well is in the contract over memory; here is what only the rules can show.
"""

from __future__ import annotations

import pytest

from celery_dlock.core import machine
from celery_dlock.core.edits import free_but_for
from celery_dlock.core.state import Busy, KeyState, Left, Mode, Outcome, Park, Run, WaitMode
from tests.unit.one_key import PATIENCE, START, TTL, OneKey, claim, place, queued, reader


@pytest.fixture
def key() -> OneKey:
    return OneKey()


@pytest.fixture
def second_slot(key: OneKey) -> OneKey:
    """Two slots: a has one of them; the other is reserved for b's place, since c is parked."""
    for mine in (queued("a", limit=2), queued("x", limit=2), place("b", limit=2), queued("c")):
        key.enter(mine)
    key.leave(queued("x", limit=2))
    assert key.woken == ["b"]
    key.passes(1)
    return key


def test_where_no_token_is_handed_in_there_is_none() -> None:
    assert machine.enter(KeyState(), claim("a"), START).verdict == Run(slot=0, token=0)


def test_who_comes_late_but_was_not_replaced_still_leaves(key: OneKey) -> None:
    key.enter(claim("a"))
    key.passes(2 * TTL)

    assert key.leave(claim("a")) == Left(carried=True)


def test_lost_runs_are_counted_by_task_until_it_is_done(key: OneKey) -> None:
    key.enter(claim("a", limit=2))
    key.enter(claim("b", limit=2))
    key.passes(TTL)
    key.reap()
    assert key.state == KeyState(lost=(("a", 1), ("b", 1)))

    key.enter(claim("a", "second"))
    key.leave(claim("a", "second"), Outcome.ABANDONED)
    assert dict(key.state.lost) == {"a": 2, "b": 1}

    key.enter(claim("a", "third"))
    key.leave(claim("a", "third"))
    assert dict(key.state.lost) == {"b": 1}


def test_who_is_refused_hears_of_the_lease_that_ends_first(key: OneKey) -> None:
    key.enter(claim("a", limit=2))
    key.passes(1)
    key.enter(claim("b", limit=2))
    key.renew(claim("a", limit=2, ttl=2 * TTL))

    verdict = key.enter(claim("c", limit=2))

    assert isinstance(verdict, Busy)
    assert verdict.holder is not None
    assert verdict.holder.task == "b"


def test_who_only_looks_is_refused_and_not_parked(key: OneKey) -> None:
    key.enter(claim("a"))

    assert isinstance(key.enter(claim("b", wait=WaitMode.LOOK)), Busy)

    assert key.state.waiting == ()


@pytest.mark.parametrize(("promised", "asked"), [(True, False), (False, True)])
def test_the_head_keeps_its_patience_and_order(key: OneKey, promised: bool, asked: bool) -> None:
    for mine in (
        *(queued("a", limit=2), queued("x", limit=2)),
        queued("b", limit=2, gives_up=TTL, ordered=promised),
    ):
        key.enter(mine)
    key.passes(1)
    key.leave(queued("x", limit=2))
    key.passes(1)

    key.enter(queued("b", "woken", limit=1, ordered=asked))

    (back,) = key.state.waiting
    assert (back.task, back.mode) == ("b", Mode.LIMITED)
    assert (back.arrived, back.expires, back.gives_up) == (START, None, START + TTL)
    assert back.ordered is True


def test_a_woken_message_stays_parked_where_the_new_version_does_not_queue(key: OneKey) -> None:
    for task in ("a", "x", "b"):
        key.enter(queued(task, limit=2))
    key.leave(queued("x", limit=2))

    assert key.enter(place("b", "woken", limit=1)) == Park()

    assert key.state.parked == 1


@pytest.mark.parametrize("wait", [WaitMode.PLACE, WaitMode.NOT])
def test_a_place_of_a_larger_limit_stays_a_place(second_slot: OneKey, wait: WaitMode) -> None:
    back = claim("b", "back", limit=1, wait=wait)

    assert isinstance(second_slot.enter(back), Busy)

    first = second_slot.state.waiting[0]
    since = second_slot.now if wait is WaitMode.PLACE else START
    assert (first.task, first.arrived, first.expires) == ("b", START, since + PATIENCE)
    assert (second_slot.waiting, second_slot.state.parked) == (["b", "c"], 1)


def test_a_key_may_be_free_but_for_one_task(key: OneKey) -> None:
    key.enter(queued("a:0:0"))

    assert free_but_for(key.state, "a", Mode.EXCLUSIVE, 1)
    assert not free_but_for(key.state, "b", Mode.EXCLUSIVE, 1)

    key.leave(queued("a:0:0"))
    key.enter(reader("r:0:0"))
    assert free_but_for(key.state, "a", Mode.SHARED, 1)
    assert not free_but_for(key.state, "a", Mode.EXCLUSIVE, 1)


def test_a_writer_that_is_a_reader_by_now_does_not_wait_for_its_own_place(key: OneKey) -> None:
    key.enter(reader("a"))
    assert isinstance(key.enter(place("b")), Busy)

    assert isinstance(key.enter(reader("b", "back", wait=WaitMode.PLACE)), Run)


def test_a_reader_that_was_woken_and_is_a_writer_by_now_waits_for_the_readers(key: OneKey) -> None:
    key.enter(queued("w"))
    for task in "ab":
        key.enter(reader(task, wait=WaitMode.QUEUE))
    key.leave(queued("w"))
    key.enter(reader("a", "woken", wait=WaitMode.QUEUE))

    assert key.enter(queued("b", "woken")) == Park()

    key.leave(reader("a", "woken", wait=WaitMode.QUEUE))
    assert key.wakes == ["b"]
