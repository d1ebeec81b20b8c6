"""The fencing token: larger with every later grant, and fixed for as long as one lasts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from celery_dlock.backends.base import LockBackend
from celery_dlock.core.state import Outcome
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import (
    DAY,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
)


def token(backend: LockBackend, task: str, nonce: str = "1", **others: Any) -> int:
    return running(backend.enter(claim(task, nonce, **others))).token


def shown(backend: LockBackend) -> list[int]:
    return [holder.token for holder in backend.peek("key").holders]


class Tokens(StoreUnderTest):
    def test_a_token_is_a_positive_integer_below_two_to_the_53(self, backend: LockBackend) -> None:
        assert 0 < token(backend, "a") < 2**53

    def test_a_hundred_grants_within_one_instant_grow_strictly(self, backend: LockBackend) -> None:
        tokens: list[int] = []
        for number in range(100):
            tokens.append(token(backend, f"task {number}"))
            backend.leave(claim(f"task {number}"), Outcome.DONE)

        assert all(earlier < later for earlier, later in pairwise(tokens))

    def test_a_token_grows_after_a_lease_has_ended(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a")
        clock.advance(11)

        assert token(backend, "b") > first

    def test_a_token_grows_after_the_key_was_idle_for_a_month(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a")
        backend.leave(claim("a"), Outcome.DONE)
        clock.advance(30 * DAY)
        backend.reap("key")

        assert token(backend, "b") > first

    def test_a_token_grows_when_the_clock_has_stepped_back(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a")
        backend.leave(claim("a"), Outcome.OVER)
        clock.advance(-60)

        assert token(backend, "b") > first

    def test_a_redelivery_gets_a_larger_token(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a", "first")
        clock.advance(11)

        assert token(backend, "a", "second") > first

    def test_a_task_whose_turn_was_called_gets_a_larger_token(self, backend: LockBackend) -> None:
        first = token(backend, "a")
        park(backend, "b")
        backend.leave(claim("a"), Outcome.OVER)

        assert token(backend, "b", wait=QUEUE) > first

    def test_a_token_stays_the_same_over_a_renewal(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        first = token(backend, "a", limit=2)
        token(backend, "b", limit=2)
        clock.advance(5)

        backend.renew([claim("a", limit=2)])

        assert min(shown(backend)) == first
        assert token(backend, "a", limit=2) == first

    def test_a_token_stays_the_same_when_the_holder_asks_again_after_a_later_grant(
        self, backend: LockBackend
    ) -> None:
        first = token(backend, "a", limit=2)
        later = token(backend, "b", limit=2)

        assert token(backend, "a", limit=2) == first < later
        assert sorted(shown(backend)) == [first, later]

    def test_a_refused_task_does_not_change_the_holders_token(self, backend: LockBackend) -> None:
        first = token(backend, "a")
        backend.enter(claim("b"))

        assert token(backend, "a") == first

    def test_slots_of_one_key_have_tokens_of_their_own(self, backend: LockBackend) -> None:
        tokens = [token(backend, task, limit=3) for task in "abc"]

        assert tokens == sorted(set(tokens))

    def test_a_reader_has_no_token(self, backend: LockBackend) -> None:
        assert token(backend, "a", mode=SHARED) == 0

    def test_a_writer_after_readers_has_a_larger_token_than_the_writer_before(
        self, backend: LockBackend
    ) -> None:
        before = token(backend, "a")
        backend.leave(claim("a"), Outcome.OVER)
        token(backend, "b", mode=SHARED)
        backend.leave(claim("b", mode=SHARED), Outcome.OVER)

        assert token(backend, "c") > before
