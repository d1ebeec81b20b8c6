"""The newest of a task wins over the one that runs: it is asked to stop, and does not run again."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.state import (
    Drop,
    End,
    Ending,
    Left,
    NotHeld,
    Outcome,
    Park,
    Reason,
    Renewed,
    Replaced,
)
from celery_dlock.stores.base import Reply, Wake
from celery_dlock.testing.contract.words import DAY, ENQUEUE, QUEUE, SECOND, listed_keys
from tests.contract.key import ABANDONED, DONE, MICROSECOND, OVER, REPEAT, UNUSED, Key, KeyTests

A, B, C = "a:0:0", "b:0:0", "c:0:0"

#: The terms of a task whose newest wins.
NEWEST: dict[str, Any] = {"wait": QUEUE, "name": "sync", "max_waiting": 1, "drop_oldest": True}
NEWEST |= {"gives_way": True, "supersedes": True}

A_ENDS = Wake("key", A, b"message", Ending.DROPPED)
GAVE_WAY = End(Ending.DROPPED, B)


def goes_on(key: Key, task: str) -> bool:
    """Whether the lease of *task* is extended."""
    return key.renews(task, **NEWEST) == Renewed(key.clock() + 10 * SECOND)


class Replacing(KeyTests):
    """Who runs is asked to give way, by the newest of the same task and by nobody else."""

    @pytest.fixture
    def asked(self, key: Key) -> Key:
        """A runs, and B waits for it to stop."""
        key.runs(A, **NEWEST)
        assert key.asks(B, **NEWEST) == Park()
        return key

    def test_who_runs_is_asked_to_give_way_and_its_lease_lasts_no_longer(self, asked: Key) -> None:
        asked.passes(10 - MICROSECOND)
        assert asked.renews(A, **NEWEST) == Replaced(B)
        assert asked.sweeps() == []

        asked.passes(MICROSECOND)

        assert asked.sweeps() == [B]
        assert asked.renews(A, **NEWEST) == NotHeld()
        asked.runs(B, **NEWEST)

    def test_the_newest_one_asks(self, asked: Key) -> None:
        assert asked.enter(C, **NEWEST).wakes == (Wake("key", B, b"message", Ending.DROPPED),)

        assert asked.renews(A, **NEWEST) == Replaced(C)
        (holder,) = asked.backend.peek("key").holders
        assert holder.replaced_by == C

    def test_it_leaves_and_is_done(self, asked: Key) -> None:
        reply = asked.leave(A, **NEWEST)

        assert (reply.verdict, [wake.task for wake in reply.wakes]) == (Left(True), [B])
        assert asked.asks(A, "2", **NEWEST) == Drop(Reason.DONE)

    @pytest.mark.parametrize("outcome", [ABANDONED, UNUSED, None], ids=str)
    def test_it_ends_when_it_comes_again(self, asked: Key, outcome: Outcome | None) -> None:
        if outcome is None:  # its lease ends
            asked.passes(10)
            asked.sweep()
        else:
            asked.leaves(A, outcome, **NEWEST)
        asked.runs(B, **NEWEST)
        assert asked.backend.peek("key").lost == ()  # it is none that has to run again

        for nonce in ("2", "3"):  # the first may die before it is through
            assert asked.asks(A, nonce, **NEWEST) == GAVE_WAY

        asked.leaves(A, DONE, nonce="3", **NEWEST)
        assert asked.asks(A, "4", **NEWEST) == Drop(Reason.DONE)
        assert goes_on(asked, B)

    def test_a_message_that_it_leaves_is_woken_to_its_end(self, asked: Key) -> None:
        reply = asked.leave(A, REPEAT, b"message", **NEWEST)

        assert A_ENDS in reply.wakes
        assert sorted(wake.task for wake in reply.wakes) == [A, B]
        assert asked.asks(A, "2", **NEWEST) == GAVE_WAY

    def test_who_leaves_after_that_is_woken_to_its_end_too(self, asked: Key) -> None:
        asked.passes(10)
        asked.sweep()
        asked.runs(B, **NEWEST)

        reply = asked.leave(A, REPEAT, b"message", **NEWEST)

        assert reply == Reply(NotHeld(carried=True), (A_ENDS,))

    def test_a_copy_that_waits_behind_it_is_woken_to_its_end(self, asked: Key) -> None:
        assert asked.asks(A, "2", **NEWEST) == Park()
        asked.passes(10)

        wakes = asked.sweep().wakes

        assert A_ENDS in wakes
        assert sorted(wake.task for wake in wakes) == [A, B]

    @pytest.mark.parametrize("woken", [False, True], ids=["comes just now", "was woken"])
    def test_a_turn_that_nobody_has_taken_gives_way_too(self, asked: Key, woken: bool) -> None:
        if woken:
            asked.leaves(A, **NEWEST)
        else:  # and nobody has swept
            asked.passes(10)

        reply = asked.enter(C, **NEWEST)

        assert (reply.verdict, [w.task for w in reply.wakes]) == (Park(), [] if woken else [B])
        ended = asked.enter(B, **NEWEST)
        assert (ended.verdict, [w.task for w in ended.wakes]) == (End(Ending.DROPPED, C), [C])
        asked.runs(C, **NEWEST)

    def test_but_not_a_turn_of_another_task(self, key: Key) -> None:
        refund = NEWEST | {"name": "refund"}
        key.runs(A, **NEWEST)
        key.enter(B, **refund)
        key.leaves(A, **NEWEST)
        key.enter(C, **NEWEST)

        key.runs(B, **refund)

    @pytest.mark.parametrize(
        ("task", "nonce", "terms"),
        [
            pytest.param(B, "1", {"name": "refund"}, id="another task"),
            pytest.param("a:1:0", "1", {}, id="its own retry"),
            pytest.param(A, "2", {}, id="a copy of it"),
            pytest.param(B, "1", {"supersedes": False}, id="one that has come before"),
        ],
    )
    def test_it_gives_way_to_no_other(
        self, key: Key, task: str, nonce: str, terms: dict[str, Any]
    ) -> None:
        key.runs(A, **NEWEST)

        assert key.asks(task, nonce, **(NEWEST | terms)) == Park()

        key.passes(1)
        assert goes_on(key, A)

    def test_who_need_not_give_way_does_not(self, key: Key) -> None:
        key.runs("lock()", name="sync")

        assert key.asks(B, **NEWEST) == Park()

        assert key.renews("lock()", name="sync") == Renewed(key.clock() + 10 * SECOND)

    def test_one_whose_run_was_lost_replaces_nobody(self, key: Key) -> None:
        key.runs(A, **NEWEST)
        key.leaves(A, ABANDONED, **NEWEST)
        key.runs(B, **NEWEST)

        assert key.asks(A, "2", **NEWEST) == Park()

        assert goes_on(key, B)

    def test_a_message_that_is_parked_before_it_is_a_task_asks(self, key: Key) -> None:
        key.runs(A, **NEWEST)

        assert key.asks(B, "", **(NEWEST | {"wait": ENQUEUE})) == Park()

        assert key.renews(A, **NEWEST) == Replaced(B)

    def test_that_it_gave_way_is_forgotten_after_a_day(self, asked: Key) -> None:
        asked.leaves(A, ABANDONED, **NEWEST)
        asked.runs(B, **NEWEST)
        asked.leaves(B, **NEWEST)
        assert asked.sweep().next_in == DAY

        asked.runs("x")  # it keeps nobody out
        asked.leaves("x", OVER)
        asked.passes(DAY)
        asked.sweep()

        assert asked.sweep().next_in is None
        assert listed_keys(asked.backend) == []

    def test_who_is_refused_replaces_nobody(self, key: Key) -> None:
        key.runs(A, **NEWEST)
        assert key.asks(B, **(NEWEST | {"supersedes": False})) == Park()

        assert key.refuses(C, **(NEWEST | {"drop_oldest": False})).full

        assert goes_on(key, A)
