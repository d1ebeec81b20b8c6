"""The newest message wins: it takes the place of one of the same kind that waits."""

from __future__ import annotations

from celery_dlock.core.state import Busy, Drop, Outcome, Park, Reason, Same, WaitMode
from celery_dlock.stores.base import LockBackend, Reply, Wake
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    PLACE,
    QUEUE,
    SECOND,
    StoreUnderTest,
    claim,
    listed_keys,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock

NEWEST = WaitMode.NEWEST


class Rewriting(StoreUnderTest):
    """A task that is published anew while it waits keeps its place, with the newest message."""

    def test_the_newest_message_is_woken_in_the_place_of_the_first(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("a")))
        for message in (b"1", b"2", ANY_BYTES):
            assert backend.enter(claim("b", wait=NEWEST), message).verdict == Park()
            park(backend, "c")

        reply = backend.leave(claim("a"), Outcome.DONE)

        unchanged = reply.wakes == (Wake("key", "b", ANY_BYTES),)
        assert unchanged
        assert [entry.task for entry in backend.peek("key").waiting] == ["c"]

    def test_it_waits_since_the_first(self, backend: LockBackend, clock: ManualClock) -> None:
        running(backend.enter(claim("a", ttl=3600)))
        backend.enter(claim("b", wait=NEWEST, gives_up=60), b"1")
        (before,) = backend.peek("key").waiting
        clock.advance(59)

        backend.enter(claim("b", wait=NEWEST, gives_up=60), b"2")

        assert backend.peek("key").waiting == (before,)
        assert backend.message("key", "b") == b"2"

    def test_on_a_free_key_it_is_woken_at_once(self, backend: LockBackend) -> None:
        reply = backend.enter(claim("a", wait=NEWEST), b"1")

        assert (reply.verdict, reply.wakes) == (Park(), (Wake("key", "a", b"1"),))

    def test_what_is_woken_has_begun(self, backend: LockBackend, clock: ManualClock) -> None:
        backend.enter(claim("a", wait=NEWEST), b"1")

        assert backend.enter(claim("a", wait=NEWEST), b"2").verdict == Drop(Reason.WAITING)

        clock.advance(5)
        assert backend.sweep().wakes == (Wake("key", "a", b"1"),)

    def test_what_runs_has_begun_and_gets_no_shadow(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a")))

        assert isinstance(backend.enter(claim("a", "2", wait=NEWEST), b"2").verdict, Same)

        assert backend.message("key", "a") is None

    def test_nor_is_what_is_kept_of_it_replaced(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", wait=QUEUE, keep=True), b"1"))

        verdict = backend.enter(claim("a", "2", wait=NEWEST), b"2").verdict

        assert verdict == Drop(Reason.WAITING)
        clock.advance(10)
        assert backend.sweep().wakes == (Wake("key", "a", b"1"),)

    def test_what_is_done_has_begun(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        backend.leave(claim("a"), Outcome.DONE)

        reply = backend.enter(claim("a", "2", wait=NEWEST), b"2")

        assert (reply.verdict, reply.wakes) == (Drop(Reason.DONE), ())


def postpone(
    backend: LockBackend, task: str, message: bytes = b"1", delay: float = 10, at_most: float = 25
) -> Reply[str]:
    """Debounce a call, for so many seconds."""
    return backend.postpone(
        claim(task, ""), message, round(delay * SECOND), round(at_most * SECOND)
    )


class Postponing(StoreUnderTest):
    """A debounced message waits until no newer one has come for a while."""

    def test_it_is_due_after_its_delay(self, backend: LockBackend, clock: ManualClock) -> None:
        reply = postpone(backend, "a", ANY_BYTES)

        assert (reply.verdict, reply.wakes) == ("a", ())
        assert (backend.sweep().wakes, backend.sweep().next_in) == ((), 10.0)
        clock.advance(9.999_999)
        assert backend.sweep().wakes == ()
        clock.advance(0.000_001)
        unchanged = backend.sweep().wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged

    def test_a_newer_one_takes_its_place_and_puts_it_off(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        postpone(backend, "a")
        clock.advance(8)

        assert postpone(backend, "b", b"2").verdict == "a"

        assert backend.sweep().next_in == 10.0
        clock.advance(10)
        assert backend.sweep().wakes == (Wake("key", "a", b"2"),)
        assert backend.parked(["b"]) == []

    def test_but_no_further_than_it_may_be_put_off_at_most(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        postpone(backend, "a")
        for number in range(3):
            clock.advance(8)
            postpone(backend, "b", b"%d" % number)

        assert backend.sweep().next_in == 1.0
        clock.advance(1)
        assert backend.sweep().wakes == (Wake("key", "a", b"2"),)

    def test_a_shorter_delay_counts_from_the_last_call_too(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        postpone(backend, "a", delay=20)

        postpone(backend, "b", delay=5)

        assert backend.sweep().next_in == 5.0

    def test_one_that_nobody_has_woken_in_time_is_replaced_and_woken_by_who_comes(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        postpone(backend, "a")
        clock.advance(40)

        reply = postpone(backend, "b", b"2")

        assert (reply.verdict, reply.wakes) == ("a", (Wake("key", "a", b"2"),))

    def test_what_is_woken_has_begun_and_the_next_one_waits_behind_it(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        postpone(backend, "a")
        clock.advance(10)
        assert woken(backend.sweep()) == ["a"]

        assert postpone(backend, "b", b"2").verdict == "b"

        clock.advance(10)
        assert woken(backend.sweep()) == ["a"]  # again: nobody has answered
        assert backend.leave(claim("a"), Outcome.OVER).wakes == (Wake("key", "b", b"2"),)

    def test_nothing_of_it_stays_when_it_is_taken(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        postpone(backend, "a")
        clock.advance(10)
        backend.sweep()

        backend.leave(claim("a"), Outcome.OVER)

        assert listed_keys(backend) == []
        assert backend.message("key", "a") is None

    def test_whoever_asks_twice_has_one_message(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for _ in range(2):
            assert postpone(backend, "a").verdict == "a"
        clock.advance(10)
        assert woken(backend.sweep()) == ["a"]

        assert postpone(backend, "a").verdict == "a"

        backend.leave(claim("a"), Outcome.OVER)
        assert listed_keys(backend) == []

    def test_it_ends_when_it_is_revoked(self, backend: LockBackend) -> None:
        postpone(backend, "a")

        assert woken(backend.cancel("key", "a")) == ["a"]

        assert postpone(backend, "b").verdict == "b"

    def test_it_is_seen_until_when(self, backend: LockBackend, clock: ManualClock) -> None:
        postpone(backend, "a")

        for state in (backend.peek("key"), *backend.look(["key"])):
            assert [slot.until for slot in state.cooling] == [clock() + 10e6]
            assert [entry.task for entry in state.waiting] == ["a"]
        assert backend.keys(waiting=True).keys == ("key",)

    def test_a_place_of_the_same_task_is_taken_over(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        assert isinstance(backend.enter(claim("b", wait=PLACE)).verdict, Busy)

        assert postpone(backend, "b").verdict == "b"

        assert [entry.parked for entry in backend.peek("key").waiting] == [True]
