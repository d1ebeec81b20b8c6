"""The message of a running task is stored, and woken once."""

from __future__ import annotations

from celery_dlock.stores.base import LockBackend, Wake
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    QUEUE,
    StoreUnderTest,
    at_once,
    claim,
    running,
)
from celery_dlock.testing.project import ManualClock

SWEEPERS = 4
KEYS = 40
A = claim("a", wait=QUEUE, keep=True)


class KeepingTests(StoreUnderTest):
    """Kept while it runs: the store has the message of a running task, too, until it is through."""

    def test_a_kept_message_is_returned_byte_by_byte(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(A, ANY_BYTES))
        clock.advance(10)

        unchanged = backend.reap("key").wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged

    def test_several_that_sweep_at_once_wake_each_kept_message_once(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        for number in range(KEYS):
            mine = claim("a", key=f"key {number}", wait=QUEUE, keep=True)
            running(backend.enter(mine, b"message"))
        clock.advance(10)

        swept = at_once(SWEEPERS, lambda _: [backend.sweep() for _ in range(2)])

        keys_woken = [wake.key for each in swept for one in each for wake in one.wakes]
        assert sorted(keys_woken) == sorted(f"key {number}" for number in range(KEYS))
