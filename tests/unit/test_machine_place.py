"""Coming back by oneself: a place keeps a rank, and expires when nobody comes."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import Busy, Drop, Mode, Park, Reason, Run, Same
from tests.unit.one_key import PATIENCE, TTL, OneKey, claim, place, queued


@pytest.fixture
def key() -> OneKey:
    """A key that a holds."""
    key = OneKey()
    key.enter(place("a"))
    return key


def test_who_comes_back_is_refused_and_keeps_a_place(key: OneKey) -> None:
    assert isinstance(key.enter(place("b")), Busy)

    assert [(entry.task, entry.arrived) for entry in key.state.waiting] == [("b", key.now)]
    assert key.state.parked == 0


def test_who_does_not_wait_leaves_nothing_behind(key: OneKey) -> None:
    assert isinstance(key.enter(claim("b")), Busy)

    assert key.waiting == []


def test_a_place_lapses_when_its_patience_is_over(key: OneKey) -> None:
    key.enter(place("b"))
    key.passes(PATIENCE - 1)
    key.reap()
    assert key.waiting == ["b"]

    key.passes(1)
    key.reap()

    assert key.waiting == []


def test_a_new_attempt_keeps_the_rank_and_begins_the_patience_anew(key: OneKey) -> None:
    # Given b before c
    key.enter(place("b"))
    key.enter(place("c"))
    key.passes(PATIENCE - 1)

    key.enter(place("b", "second attempt"))

    assert key.waiting == ["b", "c"]
    assert key.state.waiting[0].expires == key.now + PATIENCE


def test_among_places_the_first_to_come_back_takes_a_free_key(key: OneKey) -> None:
    key.enter(place("b"))
    key.enter(place("c"))
    key.leave(place("a"))
    assert key.woken == []

    assert isinstance(key.enter(place("c", "back")), Run)
    assert key.waiting == ["b"]


def test_a_place_before_a_parked_task_is_reserved_and_not_woken(key: OneKey) -> None:
    # Given b, which comes back, before c, which is parked
    key.enter(place("b"))
    key.enter(queued("c"))

    key.leave(place("a"))

    assert key.woken == ["b"]
    assert key.wakes == []
    assert isinstance(key.enter(place("b", "back")), Run)


def test_a_place_that_is_not_taken_in_time_goes_to_the_next(key: OneKey) -> None:
    key.enter(place("b"))
    key.enter(queued("c"))
    key.leave(place("a"))
    key.passes(PATIENCE - 1)
    key.reap()
    assert key.woken == ["b"]

    key.passes(1)
    key.reap()

    assert key.wakes == ["c"]
    assert key.woken == ["c"]


def test_a_parked_task_goes_before_a_later_place(key: OneKey) -> None:
    # Given c parked, And b who comes back after it
    key.enter(queued("c"))
    key.enter(place("b"))
    key.leave(place("a"))

    assert isinstance(key.enter(place("b", "back")), Busy)
    assert isinstance(key.enter(queued("c", "woken")), Run)


def test_a_place_becomes_a_parked_message_in_the_same_rank(key: OneKey) -> None:
    # Given b and c, who come back, And the policy of b's task has changed since
    key.enter(place("b"))
    key.enter(place("c"))

    assert key.enter(queued("b", "back")) == Park()

    assert key.waiting == ["b", "c"]
    assert key.state.parked == 1


def test_a_parked_message_stays_parked_for_one_who_no_longer_queues(key: OneKey) -> None:
    key.enter(queued("b"))

    assert key.enter(place("b", "copy")) == Drop(Reason.WAITING)

    assert key.state.parked == 1


def test_a_copy_of_what_runs_gets_no_place(key: OneKey) -> None:
    assert isinstance(key.enter(place("a", "copy")), Same)

    assert key.waiting == []


def test_readers_that_come_back_do_not_starve_a_writer() -> None:
    # Given a reader that runs, And a writer that comes back
    key = OneKey()
    key.enter(place("r", mode=Mode.SHARED))
    key.enter(place("w"))

    # When another reader comes, Then it waits although readers could run together
    assert isinstance(key.enter(place("s", mode=Mode.SHARED)), Busy)

    key.leave(place("r", mode=Mode.SHARED))
    assert isinstance(key.enter(place("w", "back")), Run)


def test_a_reader_that_came_before_the_writer_does_not_wait_for_it() -> None:
    # Given a reader, then a writer, who both come back
    key = OneKey()
    key.enter(place("holder"))
    key.enter(place("r", mode=Mode.SHARED))
    key.enter(place("w"))
    key.leave(place("holder"))

    assert isinstance(key.enter(place("r", "back", mode=Mode.SHARED)), Run)


def test_of_two_readers_with_places_the_first_to_come_back_runs() -> None:
    key = OneKey()
    key.enter(place("w"))
    key.enter(place("r", mode=Mode.SHARED))
    key.enter(place("s", mode=Mode.SHARED))
    key.leave(place("w"))

    assert isinstance(key.enter(place("s", "back", mode=Mode.SHARED)), Run)


def test_a_lost_run_gives_its_task_the_first_place() -> None:
    # Given a whose lease ended, And b has the key now, And c waits
    key = OneKey()
    key.enter(place("a"))
    key.passes(TTL)
    key.enter(place("b"))
    key.enter(place("c"))

    key.enter(place("a", "redelivered"))

    assert key.waiting == ["a", "c"]
