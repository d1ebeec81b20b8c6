"""How a delivery ends, and a release that is asked again because no answer was heard."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import Drop, Left, NotHeld, Outcome, Park, Reason
from celery_dlock.stores.base import Reply, Wake
from celery_dlock.testing.contract.words import QUEUE
from tests.contract.key import ABANDONED, DONE, OVER, REPEAT, UNUSED, Key, KeyTests

IS_DONE = Drop(Reason.DONE)
REPEATED = Wake("key", "a", b"message")


class Outcomes(KeyTests):
    """How a delivery ends decides what becomes of its task, also when its lease had gone before."""

    def test_a_duplicate_of_a_finished_task_is_dropped(self, key: Key) -> None:
        key.runs("a:0:0")
        assert key.leave("a:0:0") == Reply(Left(carried=True))

        assert key.asks("a:0:0", "copy") == IS_DONE
        assert key.asks("a:0:0", "copy", wait=QUEUE) == IS_DONE

        key.runs("a:1:0")  # another retry is another task
        Key(key.backend, key.clock, "other").runs("a:0:0")

    def test_a_finished_task_is_forgotten_after_its_time(self, key: Key) -> None:
        for nonce in ("first", "second"):
            key.runs("a", nonce=nonce)
            key.leaves("a", nonce=nonce, done_ttl=3600)
            key.passes(3599)
            assert key.asks("a", "copy") == IS_DONE
            key.passes(1)

    @pytest.mark.parametrize(("outcome", "done_ttl"), [(DONE, 0), (OVER, 3600), (REPEAT, 3600)])
    def test_a_task_that_is_not_remembered_may_run_again(
        self, key: Key, outcome: Outcome, done_ttl: int
    ) -> None:
        key.runs("a", done_ttl=done_ttl)
        assert key.leave("a", outcome, done_ttl=done_ttl) == Reply(Left(carried=False))

        key.runs("a", nonce="again")

    def test_a_task_to_be_repeated_goes_back_to_the_head_with_its_message(self, key: Key) -> None:
        key.runs("a", wait=QUEUE)
        key.parks("b")

        reply = key.leave("a", REPEAT, b"message", wait=QUEUE)

        assert reply == Reply(Left(carried=True), (REPEATED,))

    @pytest.mark.parametrize("dies", [False, True])
    def test_a_task_to_be_repeated_is_carried_by_a_duplicate(self, key: Key, dies: bool) -> None:
        key.runs("a", nonce="first", wait=QUEUE)
        key.passes(11)
        key.runs("a", nonce="second", wait=QUEUE)

        reply = key.leave("a", REPEAT, b"message", "first", wait=QUEUE)

        assert reply.verdict == NotHeld(carried=True)
        if dies:
            key.passes(11)
            assert key.reap() == (REPEATED,)
        else:
            assert key.leaves("a", nonce="second") == []

    def test_a_task_to_be_repeated_without_a_lease_waits_at_the_head(self, key: Key) -> None:
        key.runs("a", wait=QUEUE)
        key.passes(11)
        key.runs("b")
        key.parks("c")

        assert key.leave("a", REPEAT, b"message", wait=QUEUE).verdict == NotHeld(carried=True)

        assert key.leaves("b") == ["a"]

    @pytest.mark.parametrize("outcome", [ABANDONED, UNUSED, None], ids=str)
    def test_an_abandoned_task_comes_before_those_that_have_not_started(
        self, key: Key, outcome: Outcome | None
    ) -> None:
        key.runs("a", wait=QUEUE)
        key.parks("b", "c")
        if outcome is None:  # its lease ends
            key.passes(11)
            assert [wake.task for wake in key.reap()] == ["b"]
        else:
            assert key.leaves("a", outcome, wait=QUEUE) == ["b"]

        assert key.asks("a", "again", wait=QUEUE) == Park()

        key.runs("b", wait=QUEUE)
        assert key.leaves("b") == ["a"]

    @pytest.mark.parametrize("keep", [False, True])
    def test_an_unheard_turn_is_kept_with_its_message(self, key: Key, keep: bool) -> None:
        key.runs("a", wait=QUEUE, keep=keep)
        key.parks("b")

        reply = key.leave("a", REPEAT, b"message", wait=QUEUE, keep=keep, begun=False)

        # It comes by itself, and nobody overtakes it
        assert reply == Reply(Left(carried=True))
        key.parks("c")
        key.runs("a", nonce="again", wait=QUEUE, keep=keep)
        assert key.leaves("a", nonce="again", wait=QUEUE, keep=keep) == ["b"]

    def test_an_unheard_turn_is_woken_where_its_task_does_not_come(self, key: Key) -> None:
        key.runs("a", wait=QUEUE)
        key.parks("b")
        key.leave("a", REPEAT, b"message", wait=QUEUE, patience=6, begun=False)

        key.passes(5)
        assert key.reap() == ()
        key.passes(1)
        assert key.reap() == (REPEATED,)

    @pytest.mark.parametrize("waits", [False, True])
    def test_who_had_no_turn_gets_none_because_nobody_heard(self, key: Key, waits: bool) -> None:
        key.runs("holder")
        key.parks("b", *(["a"] if waits else []))

        reply = key.leave("a", REPEAT, b"message", "unheard", wait=QUEUE, patience=6, begun=False)

        assert reply.verdict == NotHeld(carried=waits)
        assert key.leaves("holder") == ["b"]
        assert key.leaves("b") == (["a"] if waits else [])

    def test_what_waits_stays_whoever_did_not_hear_that(self, key: Key) -> None:
        key.runs("holder")
        key.parks("a")

        reply = key.leave("a", UNUSED, nonce="copy", wait=QUEUE)

        assert reply.verdict == NotHeld(carried=True)
        assert key.leaves("holder") == ["a"]

    def test_a_lost_run_is_not_counted_against_a_task_that_finished_since(self, key: Key) -> None:
        for nonce, outcome in (("1", ABANDONED), ("again", DONE)):
            key.runs("a", nonce=nonce, done_ttl=0)
            key.leaves("a", outcome, nonce=nonce, done_ttl=0)
        key.runs("b")
        key.parks("c")

        key.parks("a")

        assert key.leaves("b") == ["c"]

    def test_a_task_that_finished_without_its_lease_is_finished(self, key: Key) -> None:
        key.runs("a")
        key.passes(11)
        key.runs("b")
        key.parks("a", nonce="copy")

        assert key.leave("a").verdict == NotHeld(carried=True)

        assert key.asks("a", "copy") == IS_DONE
        key.refuses("c")
        assert key.leaves("b") == []  # its duplicate does not wait any more

    def test_a_task_that_was_over_without_its_lease_changes_nothing(self, key: Key) -> None:
        key.runs("a")
        key.passes(11)
        run = key.runs("b")

        assert key.leave("a", OVER).verdict == NotHeld(carried=False)

        assert key.runs("b") == run


class Repeating(KeyTests):
    """Who did not hear the answer to giving a key back asks again, and hears the same."""

    @pytest.mark.parametrize("outcome", [DONE, OVER])
    @pytest.mark.parametrize("done_ttl", [0, 3600])
    def test_a_release_asked_again_is_answered_as_the_first_time(
        self, key: Key, outcome: Outcome, done_ttl: float
    ) -> None:
        key.runs("a", done_ttl=done_ttl)
        key.parks("b", "c")

        first = key.leave("a", outcome, done_ttl=done_ttl)

        assert [wake.task for wake in first.wakes] == ["b"]
        for _ in range(2):
            assert key.leave("a", outcome, done_ttl=done_ttl, again=True) == first

    @pytest.mark.parametrize("waits", [False, True])
    def test_a_release_is_heard_the_first_or_the_second_time(self, key: Key, waits: bool) -> None:
        key.runs("a")
        if waits:
            key.parks("b")

        first = key.leave("a", again=True)

        assert first.verdict == Left(carried=True)
        assert [wake.task for wake in first.wakes] == ["b"] * waits
        assert key.leave("a", again=True) == first

    def test_a_task_to_be_repeated_that_says_so_again_waits_once(self, key: Key) -> None:
        key.runs("a", wait=QUEUE)
        key.parks("b")

        first = key.leave("a", REPEAT, b"message", wait=QUEUE)

        assert first.wakes == (REPEATED,)
        assert key.leave("a", REPEAT, b"message", wait=QUEUE, again=True) == first
        key.runs("a", nonce="woken", wait=QUEUE)
        assert key.leaves("a", nonce="woken") == ["b"]

    def test_an_answered_wake_is_not_repeated_by_a_repeated_release(self, key: Key) -> None:
        key.runs("a")
        key.parks("b", "c")
        key.leaves("a")
        key.runs("b", wait=QUEUE)

        assert key.leaves("a", again=True) == []
        assert key.leaves("b") == ["c"]

    def test_a_finished_task_whose_lock_is_another_s_is_told_so_although_it_asks_again(
        self, key: Key
    ) -> None:
        """Nothing was heard of its end before, so nobody but the store took the lock away."""
        key.runs("a")
        key.passes(11)
        run = key.runs("b")

        assert key.leave("a", again=True).verdict == NotHeld(carried=True)

        assert key.runs("b") == run
