"""Dead letters: stored as they are, and listed oldest first."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import Cause, Dead, Mode, Outcome, Park
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    DAY,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
)
from celery_dlock.testing.project import ManualClock

LAST_CALL = 600.0  # seconds to the next call, at the most
UNREADABLE = Cause.UNREADABLE


def wake_in_vain(backend: LockBackend, clock: ManualClock, key: str = "key") -> None:
    """Who was woken for *key* just now is woken again, as often as a message is spared."""
    for _ in range(WAKES_BEFORE_DEAD - 1):
        clock.advance(LAST_CALL)
        backend.reap(key)


def die(
    backend: LockBackend, clock: ManualClock, task: str, key: str = "key", message: bytes = b"m"
) -> None:
    """*task* is woken for *key* in vain, and dead-lettered as unreadable."""
    running(backend.enter(claim("holder", key=key, done_ttl=0)))
    assert backend.enter(claim(task, key=key, wait=QUEUE), message).verdict == Park()
    backend.leave(claim("holder", key=key, done_ttl=0), Outcome.DONE)
    wake_in_vain(backend, clock, key)
    assert backend.dead_letter(key, task, UNREADABLE).verdict


def names(backend: LockBackend) -> list[tuple[str, str]]:
    return [(letter.key, letter.dead.task) for letter in backend.dead()]


class DeadLetters(StoreUnderTest):
    """A message that nobody can use is out of the queue, and stays for a person to look at."""

    def test_nobody_is_dead_at_first(self, backend: LockBackend) -> None:
        assert backend.dead() == []

    def test_the_dead_tell_all_that_was_known_of_them(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("holder")))
        backend.enter(claim("b", wait=QUEUE, mode=SHARED, limit=7), ANY_BYTES)
        backend.leave(claim("holder"), Outcome.DONE)
        wake_in_vain(backend, clock)
        backend.dead_letter("key", "b", Cause.UNKNOWN_TASK)

        (letter,) = backend.dead()

        unchanged = letter.message == ANY_BYTES
        assert unchanged
        assert (letter.key, letter.dead) == (
            "key",
            Dead("b", Mode.SHARED, 7, Cause.UNKNOWN_TASK, clock()),
        )

    def test_the_dead_stay(self, backend: LockBackend, clock: ManualClock) -> None:
        die(backend, clock, "a")
        clock.advance(100 * DAY)
        backend.enter(claim("b", "x"))
        backend.sweep()

        assert names(backend) == [("key", "a")]

    @pytest.mark.parametrize(
        "key", ["", " ", "a{b}c", "}{", "{{)", "{)", "ключ", "a:dead", "a,b;c"]
    )
    def test_the_dead_tell_the_name_of_any_key_and_task(
        self, backend: LockBackend, clock: ManualClock, key: str
    ) -> None:
        for task in ("a:0:0", "{b}", "ключ", ";,"):
            die(backend, clock, task, key)

        assert names(backend) == [(key, task) for task in ("a:0:0", "{b}", "ключ", ";,")]

    def test_the_oldest_dead_come_first_and_no_more_than_asked_for(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        expected = [(f"key {number * 7 % 10}", "a") for number in range(10)]
        for key, task in expected:
            die(backend, clock, task, key)

        assert names(backend) == expected
        assert [letter.key for letter in backend.dead(limit=3)] == [key for key, _ in expected[:3]]

    def test_the_dead_of_some_tasks_are_found_and_no_others(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for task, key in (("a:0:0", "one"), ("b:0:0", "one"), ("a:1:0", "other"), ("ab:0:0", "x")):
            die(backend, clock, task, key, message=task.encode())
        running(backend.enter(claim("holder", key="third")))
        park(backend, "a:0:0", key="third")

        found = [(b.key, b.dead.task, b.message) for b in backend.dead_of(["a", "unknown"])]

        assert found == [("one", "a:0:0", b"a:0:0"), ("other", "a:1:0", b"a:1:0")]
        assert backend.parked(["a"]) == [("third", "a:0:0")]
        assert backend.dead_of([]) == []
        assert backend.count_dead() == 4
        backend.replay("one", "a:0:0")
        assert [b.key for b in backend.dead_of(["a"])] == ["other"]
        assert backend.count_dead() == 3

    def test_who_dies_again_is_listed_once_and_by_its_last_death(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a:0:0")
        die(backend, clock, "b:0:0")
        die(backend, clock, "a:0:0", message=b"again")

        assert [b.dead.task for b in backend.dead()] == ["b:0:0", "a:0:0"]
        assert [b.message for b in backend.dead_of(["a"])] == [b"again"]
        assert backend.count_dead() == 2

    def test_the_dead_of_one_instant_come_by_key_and_task(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        keys = [f"key {number}" for number in range(10)]
        for key in keys[::-1]:
            running(backend.enter(claim("holder", key=key)))
            park(backend, "a", key=key)
            backend.leave(claim("holder", key=key), Outcome.DONE)
        for _ in range(WAKES_BEFORE_DEAD - 1):
            clock.advance(LAST_CALL)
            backend.sweep()
        for key in keys[::-1]:
            backend.dead_letter(key, "a", UNREADABLE)

        assert names(backend) == [(key, "a") for key in keys]

    def test_the_dead_of_another_prefix_are_not_told(
        self, backend: LockBackend, stranger: LockBackend, clock: ManualClock
    ) -> None:
        die(backend, clock, "a")

        assert stranger.dead() == []
        assert stranger.replay("key", "a").verdict is False
        assert names(backend) == [("key", "a")]
