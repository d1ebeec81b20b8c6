"""More than one holder: slots, readers, and a limit that changes while tasks wait."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import Busy, Mode, Park, Run, WaitMode
from tests.unit.one_key import PATIENCE, START, TTL, OneKey, claim, place, queued, reader


@pytest.fixture
def key() -> OneKey:
    return OneKey()


def test_as_many_hold_as_the_limit_each_in_a_slot_of_its_own(key: OneKey) -> None:
    assert key.enter(claim("a", limit=2)) == Run(slot=0, token=1)
    assert key.enter(claim("b", limit=2)) == Run(slot=1, token=2)
    assert isinstance(key.enter(claim("c", limit=2)), Busy)


def test_a_slot_that_is_given_back_is_the_next_to_be_taken(key: OneKey) -> None:
    key.enter(claim("a", limit=3))
    key.enter(claim("b", limit=3))
    key.leave(claim("a", limit=3))

    assert key.enter(claim("c", limit=3)) == Run(slot=0, token=3)


def test_who_is_refused_hears_of_the_lease_that_ends_first(key: OneKey) -> None:
    key.enter(claim("a", limit=2))
    key.passes(1)
    key.enter(claim("b", limit=2))
    key.renew(claim("a", limit=2, ttl=2 * TTL))

    verdict = key.enter(claim("c", limit=2))

    assert isinstance(verdict, Busy)
    assert verdict.holder is not None
    assert verdict.holder.task == "b"


def test_readers_run_together_without_a_token(key: OneKey) -> None:
    assert key.enter(reader("a")) == Run(slot=0, token=0)
    assert key.enter(reader("b")) == Run(slot=0, token=0)


def test_a_writer_runs_alone(key: OneKey) -> None:
    key.enter(reader("a"))
    assert isinstance(key.enter(claim("w")), Busy)
    key.leave(reader("a"))

    assert isinstance(key.enter(claim("w")), Run)
    assert isinstance(key.enter(reader("b")), Busy)


def test_later_readers_queue_behind_a_writer_that_queues(key: OneKey) -> None:
    key.enter(reader("a", wait=WaitMode.QUEUE))
    key.enter(queued("w"))

    assert key.enter(reader("b", wait=WaitMode.QUEUE)) == Park()

    assert key.waiting == ["w", "b"]


def test_all_readers_before_the_next_writer_are_woken_together(key: OneKey) -> None:
    # Given a writer, And two readers, another writer and a reader that wait
    key.enter(queued("w"))
    for waiting in (
        reader("a", wait=WaitMode.QUEUE),
        reader("b", wait=WaitMode.QUEUE),
        queued("x"),
    ):
        key.enter(waiting)
    key.enter(reader("c", wait=WaitMode.QUEUE))

    key.leave(queued("w"))

    assert key.wakes == ["a", "b"]
    assert key.waiting == ["x", "c"]


def test_the_smaller_limit_counts_while_two_versions_run(key: OneKey) -> None:
    # Given one holder that believes in one slot
    key.enter(claim("old", limit=1))

    # When a newer version believes in three, or the other way round
    assert isinstance(key.enter(claim("new", limit=3)), Busy)
    key.leave(claim("old", limit=1))
    key.enter(claim("new", limit=3))
    assert isinstance(key.enter(claim("old2", limit=1)), Busy)


def test_a_turn_woken_under_a_larger_limit_goes_back_to_the_head(key: OneKey) -> None:
    # Given b, woken into the second slot, And c behind it
    for task in ("a", "x", "b", "c"):
        key.enter(queued(task, limit=2))
    key.leave(queued("x", limit=2))
    assert key.woken == ["b"]

    # When a version with one slot takes up the call, Then it waits for a
    assert key.enter(queued("b", "woken", limit=1)) == Park()
    assert key.waiting == ["b", "c"]
    assert key.wakes == []

    # And comes first when a is through
    key.leave(queued("a", limit=2))
    assert key.wakes == ["b"]


def test_a_woken_message_stays_with_the_store_when_the_new_version_does_not_queue(
    key: OneKey,
) -> None:
    for task in ("a", "x", "b"):
        key.enter(queued(task, limit=2))
    key.leave(queued("x", limit=2))
    assert key.woken == ["b"]

    assert key.enter(place("b", "woken", limit=1)) == Park()

    assert key.state.parked == 1


@pytest.mark.parametrize(("promised", "asked"), [(True, False), (False, True)])
def test_what_goes_back_to_the_head_keeps_its_patience_and_its_order(
    key: OneKey, promised: bool, asked: bool
) -> None:
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
    assert (back.task, back.mode, back.limit) == ("b", Mode.EXCLUSIVE, 1)
    assert (back.arrived, back.expires, back.gives_up) == (START, None, START + TTL)
    assert back.ordered is True


def test_a_place_reserved_under_a_larger_limit_is_kept_as_a_place(key: OneKey) -> None:
    # Given b, for whom the second slot is reserved since c is parked
    key.enter(queued("a", limit=2))
    key.enter(queued("x", limit=2))
    key.enter(place("b", limit=2))
    key.enter(queued("c", limit=2))
    key.leave(queued("x", limit=2))
    assert key.woken == ["b"]

    assert isinstance(key.enter(place("b", "back", limit=1)), Busy)

    assert key.waiting == ["b", "c"]


def test_so_it_is_for_one_that_does_not_wait_any_more(key: OneKey) -> None:
    for mine in (queued("a", limit=2), queued("x", limit=2), place("b", limit=2), queued("c")):
        key.enter(mine)
    key.leave(queued("x", limit=2))
    key.passes(1)

    assert isinstance(key.enter(claim("b", "back", limit=1)), Busy)

    back = key.state.waiting[0]
    assert (back.task, back.arrived, back.expires) == ("b", START, START + PATIENCE)
    assert key.state.parked == 1


def test_a_writer_that_is_a_reader_by_now_does_not_wait_for_its_own_place(key: OneKey) -> None:
    key.enter(reader("a"))
    assert isinstance(key.enter(place("b")), Busy)

    assert isinstance(key.enter(reader("b", "back", wait=WaitMode.PLACE)), Run)


def test_a_reader_that_was_woken_and_is_a_writer_by_now_waits_for_the_readers(key: OneKey) -> None:
    # Given two readers that were woken together, And one of them runs
    key.enter(queued("w"))
    key.enter(reader("a", wait=WaitMode.QUEUE))
    key.enter(reader("b", wait=WaitMode.QUEUE))
    key.leave(queued("w"))
    key.enter(reader("a", "woken", wait=WaitMode.QUEUE))

    # When the new version of the other one writes
    assert key.enter(queued("b", "woken")) == Park()

    key.leave(reader("a", "woken", wait=WaitMode.QUEUE))
    assert key.wakes == ["b"]


def test_who_only_looks_is_refused_and_not_parked(key: OneKey) -> None:
    key.enter(claim("a"))

    assert isinstance(key.enter(claim("b", wait=WaitMode.LOOK)), Busy)
    assert key.state.waiting == ()
