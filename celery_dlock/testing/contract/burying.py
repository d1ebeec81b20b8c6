"""The dead: messages that nobody can use are out of the queue, and stay for a person to look at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dlock.backends.base import BackendOptions, LockBackend, Swept
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Cause, Dead, Drop, Mode, Outcome, Park, Reason
from celery_dlock.core.upkeep import CALLS_BEFORE_DEAD
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    DAY,
    PLACE,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)

LAST_CALL = 600.0  # seconds to the next call, at the most
UNREADABLE = Cause.UNREADABLE


def call_in_vain(backend: LockBackend, clock: ManualClock, key: str = "key") -> None:
    """Who was called for *key* just now is called again, as often as a message is spared."""
    for _ in range(CALLS_BEFORE_DEAD - 1):
        clock.advance(LAST_CALL)
        backend.reap(key)


def die(
    backend: LockBackend, clock: ManualClock, task: str, key: str = "key", message: bytes = b"m"
) -> None:
    """*task* is called for *key* in vain, and put aside as unreadable."""
    running(backend.enter(claim("holder", key=key, done_ttl=0)))
    assert backend.enter(claim(task, key=key, wait=QUEUE), message).verdict == Park()
    backend.leave(claim("holder", key=key, done_ttl=0), Outcome.DONE)
    call_in_vain(backend, clock, key)
    assert backend.bury(key, task, UNREADABLE).verdict


def lose_runs(backend: LockBackend, message: bytes = b"m") -> None:
    """Task a is abandoned as often as it may be."""
    for n in range(MAX_LOST_RUNS):
        mine = claim("a", str(n), wait=QUEUE, keep=True)
        running(backend.enter(mine, message))
        backend.leave(mine, Outcome.ABANDONED)


def names(backend: LockBackend) -> list[tuple[str, str]]:
    return [(burial.key, burial.dead.task) for burial in backend.dead()]


class Burying(StoreUnderTest):
    @pytest.mark.parametrize("keep", [True, False])
    def test_nobody_is_put_aside_because_answers_were_lost(
        self, backend: LockBackend, keep: bool
    ) -> None:
        for n in range(MAX_LOST_RUNS + 1):
            mine = claim("a", str(n), wait=QUEUE, keep=keep)
            running(backend.enter(mine, b"m"))
            backend.leave(mine, Outcome.UNUSED)

        running(backend.enter(claim("a", "last", wait=QUEUE, keep=keep), b"m"))
        assert backend.dead() == []

    def test_nobody_is_dead_at_first(self, backend: LockBackend) -> None:
        assert backend.dead() == []

    def test_a_message_is_put_aside_after_so_many_calls_and_the_next_is_called(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))
        park(backend, "b", "c")
        backend.leave(claim("a"), Outcome.DONE)

        for _ in range(CALLS_BEFORE_DEAD - 1):
            reply = backend.bury("key", "b", UNREADABLE)
            assert (reply.verdict, reply.wakes, backend.dead()) == (False, (), [])
            clock.advance(LAST_CALL)
            assert woken(backend.reap("key")) == ["b"]
        reply = backend.bury("key", "b", UNREADABLE)

        assert (reply.verdict, woken(reply)) == (True, ["c"])
        assert names(backend) == [("key", "b")]
        assert backend.parked(["b"]) == []

    def test_the_dead_tell_all_that_was_known_of_them(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("holder")))
        backend.enter(claim("b", wait=QUEUE, mode=SHARED, limit=7), ANY_BYTES)
        backend.leave(claim("holder"), Outcome.DONE)
        call_in_vain(backend, clock)
        backend.bury("key", "b", Cause.UNKNOWN_TASK)

        (burial,) = backend.dead()

        unchanged = burial.message == ANY_BYTES
        assert unchanged
        assert (burial.key, burial.dead) == (
            "key",
            Dead("b", Mode.SHARED, 7, Cause.UNKNOWN_TASK, clock()),
        )

    def test_a_message_is_put_aside_once(self, backend: LockBackend, clock: ManualClock) -> None:
        die(backend, clock, "a")
        before = backend.dead()
        clock.advance(1)

        assert backend.bury("key", "a", Cause.UNKNOWN_TASK).verdict is False

        assert backend.dead() == before

    def test_who_waits_runs_or_comes_by_itself_is_not_put_aside(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("runs", wait=QUEUE, keep=True, ttl=DAY), b"m"))
        backend.enter(claim("place", wait=PLACE, patience=DAY))
        park(backend, "waits")
        call_in_vain(backend, clock)

        for task in ("runs", "place", "waits", "unknown"):
            assert backend.bury("key", task, UNREADABLE).verdict is False

        assert backend.dead() == []
        assert [e.task for e in backend.peek("key").waiting] == ["runs", "place", "waits"]

    def test_a_task_whose_runs_are_lost_again_and_again_is_put_aside_with_its_message(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        lose_runs(backend, ANY_BYTES)
        park(backend, "b")

        reply = backend.enter(claim("a", "once more", wait=QUEUE, keep=True), ANY_BYTES)

        assert (reply.verdict, woken(reply)) == (Drop(Reason.DEAD), ["b"])
        (burial,) = backend.dead()
        unchanged = burial.message == ANY_BYTES
        assert unchanged
        assert burial.dead == Dead("a", Mode.EXCLUSIVE, 1, Cause.RUNS_LOST, clock())
        assert backend.parked(["a"]) == []

    def test_a_task_that_never_left_its_message_is_put_aside_with_the_delivered_one(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for n in range(MAX_LOST_RUNS):
            running(backend.enter(claim("a", str(n), wait=QUEUE), b"m"))
            clock.advance(10)

        assert backend.enter(claim("a", "x", wait=QUEUE), b"last").verdict == Drop(Reason.DEAD)

        assert [burial.message for burial in backend.dead()] == [b"last"]

    def test_the_dead_are_in_nobodys_way(self, backend: LockBackend, clock: ManualClock) -> None:
        die(backend, clock, "a")
        clock.advance(LAST_CALL)

        assert backend.sweep() == Swept((), None)
        state = backend.peek("key")
        assert (state.grants, state.waiting, state.parked) == ((), (), 0)
        running(backend.enter(claim("b")))

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
        assert [burial.key for burial in backend.dead(limit=3)] == [key for key, _ in expected[:3]]

    def test_the_dead_of_one_instant_come_by_key_and_task(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        keys = [f"key {number}" for number in range(10)]
        for key in keys[::-1]:
            running(backend.enter(claim("holder", key=key)))
            park(backend, "a", key=key)
            backend.leave(claim("holder", key=key), Outcome.DONE)
        for _ in range(CALLS_BEFORE_DEAD - 1):
            clock.advance(LAST_CALL)
            backend.sweep()
        for key in keys[::-1]:
            backend.bury(key, "a", UNREADABLE)

        assert names(backend) == [(key, "a") for key in keys]

    def test_the_dead_of_another_prefix_are_not_told(
        self, backend: LockBackend, url: str, options: BackendOptions, clock: ManualClock
    ) -> None:
        other = self.backend_class.from_url(url, replace(options, prefix=options.prefix + "-2"))
        die(backend, clock, "a")

        assert other.dead() == []
        assert other.replay("key", "a").verdict is False
        assert names(backend) == [("key", "a")]
        other.close()
