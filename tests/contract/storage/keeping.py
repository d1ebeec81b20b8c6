"""The message of a running task is stored, and woken once."""

from __future__ import annotations

from celery_dlock.stores.base import Wake
from celery_dlock.testing.contract.words import ANY_BYTES, QUEUE, at_once
from tests.contract.key import Key, KeyTests

SWEEPERS = 4
KEYS = 40


class KeepingTests(KeyTests):
    """Kept while it runs: the store has the message of a running task, too, until it is through."""

    def test_a_kept_message_is_returned_byte_by_byte(self, key: Key) -> None:
        key.runs("a", message=ANY_BYTES, wait=QUEUE, keep=True)
        key.passes(10)

        unchanged = key.reap() == (Wake("key", "a", ANY_BYTES),)
        assert unchanged

    def test_several_that_sweep_at_once_wake_each_kept_message_once(self, key: Key) -> None:
        names = [f"key {number}" for number in range(KEYS)]
        for name in names:
            Key(key.backend, key.clock, name).runs("a", wait=QUEUE, keep=True)
        key.passes(10)

        swept = at_once(SWEEPERS, lambda _: [key.sweep() for _ in range(2)])

        woken = [wake.key for sweeps in swept for one in sweeps for wake in one.wakes]
        assert sorted(woken) == sorted(names)
