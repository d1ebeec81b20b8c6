"""Revoked: a task whose message waits is woken to its end, and one that runs is left alone."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import WINDOW, End, Ending, NotHeld, Outcome
from celery_dlock.core.turns import WAKE_AGAIN_LAST
from tests.unit.one_key import PATIENCE, TTL, OneKey, kept, place, queued

LONG = 100 * WAKE_AGAIN_LAST


@pytest.fixture
def key() -> OneKey:
    """A key that a holds for long, and for which b and c wait."""
    key = OneKey()
    key.enter(queued("a", ttl=LONG))
    key.enter(queued("b"))
    key.enter(queued("c"))
    return key


def test_who_waits_and_is_revoked_is_woken_to_end(key: OneKey) -> None:
    assert key.cancel("c")

    assert key.endings == {"c": Ending.REVOKED}
    assert (key.waiting, key.state.parked) == (["b"], 1)
    assert key.enter(queued("c", "woken")) == End(Ending.REVOKED)
    assert key.leave(queued("c", "woken")) == NotHeld(carried=True)
    assert key.woken == []


def test_a_revoked_task_that_nobody_ends_is_woken_again(key: OneKey) -> None:
    key.cancel("b")
    key.passes(WAKE_AGAIN_LAST)

    key.reap()

    assert key.endings == {"b": Ending.REVOKED}


def test_revoking_twice_wakes_once(key: OneKey) -> None:
    key.cancel("b")

    assert key.cancel("b")

    assert (key.wakes, key.woken) == ([], ["b"])


def test_who_was_woken_and_is_revoked_ends_when_it_comes_and_keeps_no_slot(key: OneKey) -> None:
    key.leave(queued("a"))
    assert key.woken == ["b"]

    assert key.cancel("b")

    assert (key.wakes, key.woken) == (["c"], ["b", "c"])
    assert key.enter(queued("b", "woken")) == End(Ending.REVOKED)


def test_an_ending_stays_what_it_was(key: OneKey) -> None:
    key.enter(queued("d", gives_up=PATIENCE))
    key.passes(PATIENCE)
    key.reap()
    assert key.endings == {"d": Ending.TIMED_OUT}

    assert key.cancel("d")

    assert key.enter(queued("d", "woken")) == End(Ending.TIMED_OUT)


@pytest.mark.parametrize("task", ["a", "unknown"])
def test_who_runs_or_is_unknown_is_not_revoked_here(key: OneKey, task: str) -> None:
    after = key.state

    assert not key.cancel(task)

    assert (key.state, key.wakes) == (after, [])


def test_who_runs_with_its_message_kept_is_not_revoked_here() -> None:
    key = OneKey()
    key.enter(kept("a"))

    assert not key.cancel("a")

    # And the message is still there for the next run
    key.leave(kept("a"), Outcome.ABANDONED)
    assert (key.wakes, key.endings) == (["a"], {})


def test_a_kept_message_whose_run_was_lost_is_revoked() -> None:
    key = OneKey()
    key.enter(kept("a"))
    key.passes(TTL)

    assert key.cancel("a")

    assert key.endings == {"a": Ending.REVOKED}


def test_a_place_is_nobodys_message_to_be_revoked(key: OneKey) -> None:
    key.enter(place("p"))

    assert not key.cancel("p")

    assert key.waiting == ["b", "c", "p"]


def test_whatever_else_is_due_is_woken_when_one_is_revoked(key: OneKey) -> None:
    key.passes(LONG)

    key.cancel("c")

    assert key.wakes == ["c", "b"]
    assert key.endings == {"c": Ending.REVOKED}


def test_who_waits_behind_what_is_loaded_is_revoked_all_the_same() -> None:
    key = OneKey()
    key.enter(queued("a"))
    for n in range(2 * WINDOW):
        key.enter(queued(f"w{n}"))
    last = f"w{2 * WINDOW - 1}"

    assert key.cancel(last)

    assert key.endings == {last: Ending.REVOKED}
    assert key.state.parked == 2 * WINDOW - 1
