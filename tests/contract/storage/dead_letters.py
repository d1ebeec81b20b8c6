"""Dead letters: stored as they are, and listed oldest first."""

from __future__ import annotations

from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Cause, Dead, Mode, Outcome, Park
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract.words import ANY_BYTES, DAY, QUEUE, SHARED, claim, running
from celery_dlock.testing.project import ManualClock
from tests.contract.key import Key, KeyTests

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


ODD_KEYS = ["", " ", "a{b}c", "}{", "{{)", "{)", "ключ", "a:dead", "a,b;c"]
ODD_TASKS = ["a:0:0", "{b}", "ключ", ";,"]


class DeadLetters(KeyTests):
    """A message that nobody can use is out of the queue, and stays for a person to look at."""

    def test_the_dead_tell_all_that_was_known_of_them_and_stay(self, key: Key) -> None:
        assert key.backend.dead() == []
        key.runs("holder")
        key.enter("b", message=ANY_BYTES, wait=QUEUE, mode=SHARED, limit=7)
        key.leaves("holder")
        wake_in_vain(key.backend, key.clock)
        key.backend.dead_letter("key", "b", Cause.UNKNOWN_TASK)
        died = key.clock()
        key.passes(100 * DAY)
        key.enter("x")
        key.sweep()

        (letter,) = key.backend.dead()

        unchanged = letter.message == ANY_BYTES
        assert unchanged
        assert letter.key == "key"
        assert letter.dead == Dead("b", Mode.SHARED, Cause.UNKNOWN_TASK, died)

    def test_the_dead_tell_the_name_of_any_key_and_task(self, key: Key) -> None:
        expected = [(name, task) for name in ODD_KEYS for task in ODD_TASKS]
        for name, task in expected:
            die(key.backend, key.clock, task, name)

        assert names(key.backend) == expected

    def test_the_oldest_dead_come_first_and_no_more_than_asked_for(self, key: Key) -> None:
        expected = [f"key {number * 7 % 10}" for number in range(10)]
        for name in expected:
            die(key.backend, key.clock, "a", name)

        assert [letter.key for letter in key.backend.dead()] == expected
        assert [letter.key for letter in key.backend.dead(limit=3)] == expected[:3]

    def test_the_dead_of_some_tasks_are_found_and_no_others(self, key: Key) -> None:
        backend = key.backend
        for task, name in (
            *(("a:0:0", "one"), ("b:0:0", "one")),
            *(("a:1:0", "other"), ("ab:0:0", "x")),
        ):
            die(backend, key.clock, task, name, message=task.encode())
        third = Key(backend, key.clock, "third")
        third.runs("holder")
        third.parks("a:0:0")

        found = [(b.key, b.dead.task, b.message) for b in backend.dead_of(["a", "unknown"])]

        assert found == [("one", "a:0:0", b"a:0:0"), ("other", "a:1:0", b"a:1:0")]
        assert backend.parked(["a"]) == [("third", "a:0:0")]
        assert (backend.dead_of([]), backend.count_dead()) == ([], 4)
        backend.apply(Replay("one", "a:0:0"))
        assert [b.key for b in backend.dead_of(["a"])] == ["other"]
        assert backend.count_dead() == 3

    def test_who_dies_again_is_listed_once_and_by_its_last_death(self, key: Key) -> None:
        die(key.backend, key.clock, "a:0:0")
        die(key.backend, key.clock, "b:0:0")
        die(key.backend, key.clock, "a:0:0", message=b"again")

        assert [b.dead.task for b in key.backend.dead()] == ["b:0:0", "a:0:0"]
        assert [b.message for b in key.backend.dead_of(["a"])] == [b"again"]
        assert key.backend.count_dead() == 2

    def test_dead_letters_of_an_instant_sort_by_key(self, key: Key, stranger: LockBackend) -> None:
        expected = [f"key {number}" for number in range(10)]
        for name in expected[::-1]:
            one = Key(key.backend, key.clock, name)
            one.runs("holder")
            one.parks("a")
            one.leaves("holder")
        for _ in range(WAKES_BEFORE_DEAD - 1):
            key.passes(LAST_CALL)
            key.sweep()
        for name in expected[::-1]:
            key.backend.dead_letter(name, "a", UNREADABLE)

        assert names(key.backend) == [(name, "a") for name in expected]
        assert (stranger.dead(), stranger.apply(Replay("key 1", "a")).verdict) == ([], False)
        assert key.backend.count_dead() == len(expected)
