"""What becomes a dead letter, and what replaying and discarding one does."""

from __future__ import annotations

import pytest

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import Discard, Replay
from celery_dlock.core.state import Busy, Cause, Dead, Drop, Mode, NotHeld, Park, Reason, WaitMode
from celery_dlock.core.upkeep import WAKES_BEFORE_DEAD
from celery_dlock.stores.base import Reply, Swept, Wake
from celery_dlock.testing.contract.words import ANY_BYTES, DAY, PLACE, QUEUE, SHARED, woken
from tests.contract.key import ABANDONED, UNUSED, Key, KeyTests
from tests.contract.storage.dead_letters import LAST_CALL, UNREADABLE, die, names, wake_in_vain

AN_HOUR = 3_600_000_000  # in the microseconds of an operation


def lose_runs(key: Key, message: bytes = b"m") -> None:
    """Task a is abandoned as often as it may be."""
    for n in range(MAX_LOST_RUNS):
        key.runs("a", nonce=str(n), wait=QUEUE, keep=True, message=message)
        key.leaves("a", ABANDONED, nonce=str(n), wait=QUEUE, keep=True)


def dead_letter(key: Key, task: str) -> Reply[bool]:
    return key.backend.dead_letter("key", task, UNREADABLE)


class DeadLetters(KeyTests):
    """A message that nobody can use is out of the queue, and stays for a person to look at."""

    @pytest.mark.parametrize("keep", [True, False])
    def test_nobody_is_dead_lettered_because_answers_were_lost(self, key: Key, keep: bool) -> None:
        for n in range(MAX_LOST_RUNS + 1):
            key.runs("a", nonce=str(n), wait=QUEUE, keep=keep)
            key.leaves("a", UNUSED, nonce=str(n), wait=QUEUE, keep=keep)

        key.runs("a", nonce="last", wait=QUEUE, keep=keep)
        assert key.backend.dead() == []

    def test_a_message_is_dead_lettered_after_so_many_wakes_and_the_next_is_woken(
        self, key: Key
    ) -> None:
        key.runs("a")
        key.parks("b", "c")
        key.leaves("a")

        for _ in range(WAKES_BEFORE_DEAD - 1):
            assert (dead_letter(key, "b"), key.backend.dead()) == (Reply(False), [])
            key.passes(LAST_CALL)
            assert [wake.task for wake in key.reap()] == ["b"]
        reply = dead_letter(key, "b")

        assert (reply.verdict, woken(reply)) == (True, ["c"])
        assert names(key.backend) == [("key", "b")]
        assert key.backend.parked(["b"]) == []

    def test_a_message_is_dead_lettered_once_and_is_in_nobodys_way(self, key: Key) -> None:
        die(key.backend, key.clock, "a")
        before = key.backend.dead()
        key.passes(LAST_CALL)

        assert dead_letter(key, "a").verdict is False

        assert key.backend.dead() == before
        assert key.sweep() == Swept((), None)
        assert (key.turns, key.waiting, key.parked) == ([], [], 0)
        key.runs("b")

    def test_who_waits_runs_or_comes_by_itself_is_not_dead_lettered(self, key: Key) -> None:
        key.runs("runs", wait=QUEUE, keep=True, ttl=DAY)
        key.refuses("place", wait=PLACE, patience=DAY)
        key.parks("waits")
        wake_in_vain(key.backend, key.clock)

        for task in ("runs", "place", "waits", "unknown"):
            assert dead_letter(key, task).verdict is False

        assert key.backend.dead() == []
        assert key.waiting == ["runs", "place", "waits"]

    def test_a_task_whose_runs_are_always_lost_is_dead_lettered(self, key: Key) -> None:
        lose_runs(key, ANY_BYTES)
        key.parks("b")

        reply = key.enter("a", "once more", ANY_BYTES, wait=QUEUE, keep=True)

        assert (reply.verdict, woken(reply)) == (Drop(Reason.DEAD), ["b"])
        (letter,) = key.backend.dead()
        unchanged = letter.message == ANY_BYTES
        assert unchanged
        assert letter.dead == Dead("a", Mode.EXCLUSIVE, Cause.RUNS_LOST, key.clock())
        assert key.backend.parked(["a"]) == []

    def test_a_task_without_a_message_is_dead_lettered_with_the_delivered(self, key: Key) -> None:
        for n in range(MAX_LOST_RUNS):
            key.runs("a", nonce=str(n), wait=QUEUE)
            key.passes(10)

        # One that asks first does not have it at hand, and is told to come with it
        looks = key.backend.enter(key.claim("a", "x", wait=WaitMode.LOOK))
        assert (looks.verdict, key.backend.dead()) == (Busy(None, 0, 0), [])
        assert key.asks("a", "x", wait=QUEUE, message=b"last") == Drop(Reason.DEAD)

        assert [letter.message for letter in key.backend.dead()] == [b"last"]


class Replaying(KeyTests):
    """Replayed: a dead message waits again, and what is remembered of its task is forgotten."""

    def test_a_replayed_message_is_woken_as_it_was(self, key: Key) -> None:
        die(key.backend, key.clock, "a", message=ANY_BYTES)

        reply = key.backend.apply(Replay("key", "a"))

        unchanged = reply.wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged
        assert (reply.verdict, key.backend.dead()) == (True, [])
        key.runs("a", wait=QUEUE)

    def test_a_replayed_message_waits_behind_the_others(self, key: Key) -> None:
        die(key.backend, key.clock, "a", message=b"first")
        key.runs("b")
        key.parks("c")

        assert key.backend.apply(Replay("key", "a")) == Reply(True)

        assert key.leaves("b") == ["c"]
        key.runs("c", wait=QUEUE)
        assert key.leave("c").wakes == (Wake("key", "a", b"first"),)

    def test_a_replayed_message_keeps_its_mode(self, key: Key) -> None:
        key.runs("holder")
        key.parks("b", mode=SHARED)
        key.leaves("holder")
        wake_in_vain(key.backend, key.clock)
        dead_letter(key, "b")
        key.runs("w")

        key.backend.apply(Replay("key", "b"))

        (entry,) = key.backend.peek("key").waiting
        assert (entry.mode, entry.gives_up) == (Mode.SHARED, None)

    def test_a_replayed_task_starts_with_no_lost_runs(self, key: Key) -> None:
        lose_runs(key)
        key.enter("a", "once more", wait=QUEUE)

        assert woken(key.backend.apply(Replay("key", "a"))) == ["a"]

        lose_runs(key)
        assert key.asks("a", "x", wait=QUEUE) == Drop(Reason.DEAD)

    def test_replaying_what_is_done_lets_it_run_again(self, key: Key) -> None:
        key.runs("a")
        key.leaves("a")
        assert key.asks("a", "copy") == Drop(Reason.DONE)

        assert key.backend.apply(Replay("key", "a")) == Reply(False)

        key.runs("a", nonce="copy")
        key.leaves("a", nonce="copy")
        assert key.asks("a", "another") == Drop(Reason.DONE)

    def test_a_dead_message_whose_task_has_run_by_a_copy_is_forgotten(self, key: Key) -> None:
        die(key.backend, key.clock, "a")
        key.runs("a", nonce="copy")
        key.leaves("a", nonce="copy")

        assert key.backend.apply(Replay("key", "a")) == Reply(False)

        assert key.backend.dead() == []
        assert key.asks("a", "another") == Drop(Reason.DONE)

    def test_a_task_whose_runs_were_lost_is_replayed_after_its_last_end(self, key: Key) -> None:
        lose_runs(key)
        key.enter("a", "once more", wait=QUEUE)
        late = key.leave("a", nonce=str(MAX_LOST_RUNS - 1))
        assert isinstance(late.verdict, NotHeld)
        assert key.asks("a", "copy") == Drop(Reason.DONE)

        reply = key.backend.apply(Replay("key", "a"))

        assert (reply.verdict, woken(reply), key.backend.dead()) == (True, ["a"], [])
        key.runs("a", nonce="again", wait=QUEUE)

    def test_nothing_changes_for_what_is_not_dead(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")
        before = key.backend.peek("key")

        for task in ("a", "b", "unknown"):
            assert key.backend.apply(Replay("key", task)) == Reply(False)
            assert key.backend.apply(Discard("key", task, AN_HOUR)) == Reply(False)

        assert key.backend.peek("key") == before
        key.leaves("a")
        key.runs("b", wait=QUEUE)

    def test_a_dead_message_whose_task_waits_again_is_forgotten(self, key: Key) -> None:
        die(key.backend, key.clock, "a", message=b"dead")
        key.runs("holder")
        assert key.asks("a", "redelivered", message=b"redelivered", wait=QUEUE) == Park()

        assert key.backend.apply(Replay("key", "a")).verdict is True

        assert (key.backend.dead(), key.parked) == ([], 1)
        assert key.leave("holder").wakes == (Wake("key", "a", b"redelivered"),)

    def test_a_replayed_message_takes_over_the_place_of_its_task(self, key: Key) -> None:
        die(key.backend, key.clock, "a", message=b"dead")
        key.runs("holder")
        key.refuses("a", "another", wait=PLACE)

        key.backend.apply(Replay("key", "a"))

        assert (key.waiting, key.parked) == (["a"], 1)
        assert key.leave("holder").wakes == (Wake("key", "a", b"dead"),)
        key.runs("a", wait=QUEUE)
        assert key.leaves("a") == []


class Discarding(KeyTests):
    """Discarded: a dead message is gone for good, and no duplicate of it runs."""

    def test_a_discarded_message_is_gone_and_its_task_counts_as_done(self, key: Key) -> None:
        die(key.backend, key.clock, "a")
        die(key.backend, key.clock, "b")

        assert key.backend.apply(Discard("key", "a", AN_HOUR)) == Reply(True)

        assert names(key.backend) == [("key", "b")]
        assert key.backend.apply(Discard("key", "a", AN_HOUR)).verdict is False
        assert key.backend.apply(Replay("key", "b")).verdict is True
        assert key.asks("a", "copy", wait=QUEUE) == Drop(Reason.DONE)

    def test_a_discarded_task_starts_with_no_lost_runs_once_it_is_forgotten(self, key: Key) -> None:
        lose_runs(key)
        key.enter("a", "once more", wait=QUEUE)

        assert key.backend.apply(Discard("key", "a", 0)).verdict is True

        assert (key.backend.dead(), key.parked) == ([], 0)
        key.runs("a", nonce="published again", wait=QUEUE)

    def test_another_message_of_a_discarded_task_stays(self, key: Key) -> None:
        die(key.backend, key.clock, "a", message=b"dead")
        key.runs("holder")
        key.enter("a", "redelivered", b"redelivered", wait=QUEUE)

        assert key.backend.apply(Discard("key", "a", AN_HOUR)).verdict is True

        assert key.backend.dead() == []
        assert key.leave("holder").wakes == (Wake("key", "a", b"redelivered"),)
        key.runs("a", wait=QUEUE)
