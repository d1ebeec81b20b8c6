"""What ends without having run: it waited too long, had to make room, or was revoked."""

from __future__ import annotations

from typing import Any

import pytest

from celery_dlock.core.state import WINDOW, Drop, End, Ending, NotHeld, Park, Reason
from celery_dlock.stores.base import Reply, Wake
from celery_dlock.testing.contract.words import PLACE, QUEUE, woken
from tests.contract.key import MICROSECOND, OVER, Key, KeyTests, message_of

TIMED_OUT, DROPPED, REVOKED = (
    Wake("key", "b", b"message of b", ending)
    for ending in (Ending.TIMED_OUT, Ending.DROPPED, Ending.REVOKED)
)
NEWEST: dict[str, Any] = {"wait": QUEUE, "max_waiting": 1, "drop_oldest": True, "name": "sync"}


class Endings(KeyTests):
    """Endings: a message that waited too long, or has to make room, is woken to end, visibly."""

    @pytest.fixture
    def overdue(self, key: Key) -> Key:
        """Task a holds the key; task b has waited for as long as it would."""
        key.runs("a", ttl=3600)
        key.parks("b", gives_up=60)
        key.passes(60 - MICROSECOND)
        assert key.reap() == ()
        key.passes(MICROSECOND)
        return key

    def test_a_message_is_woken_to_end_when_its_patience_is_over(self, overdue: Key) -> None:
        assert overdue.reap() == (TIMED_OUT,)
        assert overdue.reap() == ()

    def test_whatever_happens_to_the_key_ends_who_waited_too_long(self, overdue: Key) -> None:
        assert overdue.leave("a", OVER).wakes == (TIMED_OUT,)

        overdue.runs("c")  # an ending takes no slot

    def test_one_delivery_brings_an_ending_about_and_then_it_is_over(self, overdue: Key) -> None:
        overdue.reap()

        for nonce, verdict in (
            ("one", End(Ending.TIMED_OUT)),
            ("two", Drop(Reason.WAITING)),
            ("one", End(Ending.TIMED_OUT)),
        ):
            assert overdue.asks("b", nonce, wait=QUEUE) == verdict
        assert overdue.leave("b", nonce="one").verdict == NotHeld(carried=True)
        overdue.passes(60)
        assert overdue.reap() == ()
        assert overdue.asks("b", "two", wait=QUEUE) == Drop(Reason.DONE)

    def test_an_ending_that_is_not_brought_about_is_woken_again(self, overdue: Key) -> None:
        overdue.reap()
        overdue.enter("b", "one", wait=QUEUE, ttl=10)
        overdue.passes(10 - MICROSECOND)
        assert overdue.reap() == ()

        overdue.passes(MICROSECOND)

        assert overdue.reap() == (TIMED_OUT,)
        assert overdue.asks("b", "two", wait=QUEUE) == End(Ending.TIMED_OUT)

    def test_the_duplicate_of_a_running_task_is_not_ended(self, key: Key) -> None:
        key.runs("a", ttl=3600)
        key.parks("a", nonce="copy", gives_up=60)
        key.passes(60)

        assert key.reap() == ()

    def test_a_long_queue_that_waited_too_long_is_ended_window_by_window(self, key: Key) -> None:
        key.runs("a", ttl=3600)
        tasks = [f"task {n}" for n in range(100)]
        key.parks(*tasks, gives_up=60)
        key.passes(60)

        ended = [wake for _ in range(5) for wake in key.reap()]

        assert [wake.task for wake in ended] == tasks
        assert {wake.ending for wake in ended} == {Ending.TIMED_OUT}
        assert key.parked == 0

    def test_a_full_queue_takes_no_message(self, key: Key) -> None:
        key.runs("a")
        key.parks("b", "c", max_waiting=2)

        refused = key.refuses("d", wait=QUEUE, max_waiting=2)

        assert (refused.full, refused.parked) == (True, 2)
        assert key.waiting == ["b", "c"]

    def test_the_first_message_of_a_full_queue_makes_room(self, key: Key) -> None:
        key.runs("a")
        key.refuses("place", wait=PLACE)
        key.parks("b", "c", drop_oldest=True)
        newest: dict[str, Any] = {"wait": QUEUE, "max_waiting": 2, "drop_oldest": True}

        assert key.enter("d", **newest) == Reply(Park(), (DROPPED,))

        assert key.asks("d", **newest) == Drop(Reason.WAITING)
        assert (key.waiting, key.parked) == (["place", "c", "d"], 2)
        assert key.asks("b", wait=QUEUE) == End(Ending.DROPPED)

    @pytest.mark.parametrize(
        "other",
        [{}, {"name": "sync", "keyset": "b"}, {"name": "other", "drop_oldest": True}],
        ids=str,
    )
    def test_nobody_makes_room_for_another_task(self, key: Key, other: dict[str, Any]) -> None:
        key.runs("a")
        key.parks("b", "c", **other)

        # It waits beside them, and makes room for a newer one of its own
        assert key.enter("d", message=b"d", **NEWEST) == Reply(Park())
        reply = key.enter("e", **NEWEST)

        assert reply == Reply(Park(), (Wake("key", "d", b"d", Ending.DROPPED),))
        assert key.waiting == ["b", "c", "e"]

    def test_a_queue_of_others_that_is_too_long_to_be_seen_is_full(self, key: Key) -> None:
        key.runs("a")
        key.parks(*(f"b{n}" for n in range(WINDOW)))
        assert key.asks("c", **NEWEST) == Park()

        assert key.refuses("d", **NEWEST).full

    def test_who_is_woken_by_the_same_operation_has_made_room(self, key: Key) -> None:
        key.runs("a")
        key.parks("b")
        key.passes(10)

        reply = key.enter("c", wait=QUEUE, max_waiting=1)

        assert (reply.verdict, woken(reply)) == (Park(), ["b"])

    @pytest.mark.parametrize("ending", [DROPPED, REVOKED], ids=["dropped", "revoked"])
    def test_a_message_is_woken_until_somebody_ends_it(self, key: Key, ending: Wake) -> None:
        key.runs("a", ttl=3600)
        key.parks("b", drop_oldest=True)
        if ending is DROPPED:
            key.enter("c", wait=QUEUE, max_waiting=1, drop_oldest=True)
        else:
            key.cancels("b")

        for wait in (5, 10, 20):
            key.passes(wait)
            assert key.sweep().wakes == (ending,)


class Revoking(KeyTests):
    """Revoked: a task whose message waits is found by its id, and woken to its end."""

    @pytest.fixture
    def queue(self, key: Key) -> Key:
        """Task a holds the key; tasks b and c wait for it."""
        key.runs("a", ttl=3600)
        key.parks("b", "c")
        return key

    def test_the_message_of_who_waits_or_was_woken_is_told_and_of_nobody_else(
        self, queue: Key
    ) -> None:
        queue.refuses("place", wait=PLACE)
        for task in "bc":
            assert queue.backend.message("key", task) == message_of(task)
        for key, task in (("key", "a"), ("key", "place"), ("key", "x"), ("idle", "b")):
            assert queue.backend.message(key, task) is None

        assert queue.leaves("a") == ["b"]

        assert queue.backend.message("key", "b") == message_of("b")
        queue.runs("b", wait=QUEUE)
        assert queue.backend.message("key", "b") is None

    def test_a_revoked_task_is_woken_with_its_message_to_end(self, queue: Key) -> None:
        assert queue.backend.cancel("key", "b") == Reply(True, (REVOKED,))

        assert queue.asks("b", "call", wait=QUEUE) == End(Ending.REVOKED)
        assert queue.leave("b", nonce="call").verdict == NotHeld(carried=True)
        assert queue.asks("b", "late", wait=QUEUE) == Drop(Reason.DONE)
        assert queue.leaves("a") == ["c"]

    def test_revoking_twice_wakes_once(self, queue: Key) -> None:
        queue.cancels("b")

        assert queue.backend.cancel("key", "b") == Reply(True)

        assert queue.parked == 1

    def test_a_woken_task_ends_when_it_comes_and_the_next_is_woken(self, queue: Key) -> None:
        assert queue.leaves("a") == ["b"]

        assert queue.cancels("b") == ["c"]

        assert queue.asks("b", wait=QUEUE) == End(Ending.REVOKED)
        queue.runs("c", wait=QUEUE)

    def test_who_runs_and_is_kept_is_not_revoked_by_the_store(self, key: Key) -> None:
        key.runs("a", wait=QUEUE, keep=True, message=b"a")

        assert key.backend.cancel("key", "a") == Reply(False)

        key.passes(10)
        assert key.sweep().wakes == (Wake("key", "a", b"a"),)

    def test_nothing_happens_to_who_does_not_wait_with_a_message(self, queue: Key) -> None:
        queue.refuses("place", wait=PLACE)
        before = queue.backend.peek("key")

        for key, task in (("key", "a"), ("key", "place"), ("key", "unknown"), ("other key", "b")):
            assert queue.backend.cancel(key, task).verdict is False

        assert queue.backend.peek("key") == before
        queue.runs("a", ttl=3600)

    def test_who_waits_far_back_is_revoked_too(self, key: Key) -> None:
        key.runs("a")
        tasks = [f"task {n}" for n in range(2 * WINDOW)]
        key.parks(*tasks)

        assert key.cancels(tasks[-1]) == tasks[-1:]

        assert key.waiting == tasks[:-1]
        assert key.parked == 2 * WINDOW - 1
