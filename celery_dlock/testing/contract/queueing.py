"""Messages in the queue: kept byte by byte, woken in their order, and found by a sweep."""

from __future__ import annotations

from celery_dlock.core.state import Outcome, Park
from celery_dlock.stores.base import LockBackend, Swept, Wake
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    QUEUE,
    SECOND,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock


class QueueingTests(StoreUnderTest):
    """The queue: a message is kept as it came, first come first woken, and a wake reserves."""

    def test_the_queue_returns_a_message_byte_by_byte(self, backend: LockBackend) -> None:
        backend.enter(claim("a"))
        assert backend.enter(claim("b", wait=QUEUE), ANY_BYTES).verdict == Park()

        reply = backend.leave(claim("a"), Outcome.OVER)

        # Compared outside the assert: under CI pytest would look for minutes for the difference.
        unchanged = reply.wakes == (Wake("key", "b", ANY_BYTES),)
        assert unchanged

    def test_the_queue_wakes_first_come_first_woken_and_one_at_a_time(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("a"))
        park(backend, "b", "c", "d")

        task = "a"
        for following in ("b", "c", "d"):
            assert woken(backend.leave(claim(task), Outcome.DONE)) == [following]
            running(backend.enter(claim(following, wait=QUEUE)))
            task = following
        assert backend.leave(claim(task), Outcome.DONE).wakes == ()

    def test_the_newest_postponed_message_is_due_after_its_delay(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        def postpone(task: str, message: bytes) -> str:
            waiting = claim(task, wait=QUEUE)
            return backend.postpone(waiting, message, 10 * SECOND, 15 * SECOND).verdict.task

        assert [postpone("a", b"1"), postpone("b", ANY_BYTES)] == ["a", "a"]
        clock.advance(8)
        assert backend.sweep() == Swept((), 2.0)

        postpone("c", ANY_BYTES)

        assert backend.sweep() == Swept((), 7.0)  # by which it has waited for as long as it may
        clock.advance(7)
        unchanged = backend.sweep().wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged


def wait_for(backend: LockBackend, key: str, ttl: float = 10) -> None:
    """Let task b wait for *key*, which task a holds for *ttl* seconds."""
    running(backend.enter(claim("a", key=key, ttl=ttl)))
    park(backend, "b", key=key)


class SweepingTests(StoreUnderTest):
    """Sweeping: what is due is found, whoever looks; what is not is left alone."""

    def test_a_key_is_due_when_its_holder_has_died_and_a_message_waits(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        wait_for(backend, "key")
        assert backend.sweep() == Swept((), 10.0)
        clock.advance(9.999_999)
        assert woken(backend.sweep()) == []

        clock.advance(0.000_001)

        assert backend.sweep() == Swept((Wake("key", "b", b"message of b"),), 5.0)
