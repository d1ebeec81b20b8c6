"""Revoked: a task whose message waits is found by its id, and called to its end."""

from __future__ import annotations

import pytest

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.state import WINDOW, Drop, End, Ending, Lost, Outcome, Reason
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.words import (
    PLACE,
    QUEUE,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)

REVOKED = Wake("key", "b", b"message of b", Ending.REVOKED)
ODD_IDS = ["a*", "a?c", "[ab]", "a\\b", "^a-c]", "задача \U0001f511", "a:b", "a{b}", "", "a\nb"]


class Revoking(StoreUnderTest):
    @pytest.fixture
    def queue(self, backend: LockBackend) -> LockBackend:
        """Task a holds the key; tasks b and c wait for it."""
        running(backend.enter(claim("a", ttl=3600)))
        park(backend, "b", "c")
        return backend

    def test_a_revoked_task_is_called_with_its_message_to_end(self, queue: LockBackend) -> None:
        reply = queue.cancel("key", "b")

        assert (reply.verdict, reply.wakes) == (True, (REVOKED,))
        assert queue.enter(claim("b", "call", wait=QUEUE), b"x").verdict == End(Ending.REVOKED)
        assert queue.leave(claim("b", "call"), Outcome.DONE).verdict == Lost(carried=True)
        assert queue.enter(claim("b", "late", wait=QUEUE), b"x").verdict == Drop(Reason.DONE)
        assert woken(queue.leave(claim("a"), Outcome.DONE)) == ["c"]

    def test_a_revoked_task_is_called_again_until_somebody_ends_it(
        self, queue: LockBackend, clock: ManualClock
    ) -> None:
        queue.cancel("key", "b")

        for wait in (5, 10, 20):
            clock.advance(wait)
            assert queue.sweep().wakes == (REVOKED,)

    def test_revoking_twice_calls_once(self, queue: LockBackend) -> None:
        queue.cancel("key", "b")

        reply = queue.cancel("key", "b")

        assert (reply.verdict, reply.wakes) == (True, ())
        assert queue.peek("key").parked == 1

    def test_who_was_called_already_ends_when_it_comes_and_the_next_is_called(
        self, queue: LockBackend
    ) -> None:
        assert woken(queue.leave(claim("a"), Outcome.DONE)) == ["b"]

        reply = queue.cancel("key", "b")

        assert (reply.verdict, woken(reply)) == (True, ["c"])
        assert queue.enter(claim("b", wait=QUEUE), b"x").verdict == End(Ending.REVOKED)
        running(queue.enter(claim("c", wait=QUEUE)))

    def test_who_runs_is_not_revoked_by_the_store(self, queue: LockBackend) -> None:
        assert queue.cancel("key", "a").verdict is False

        running(queue.enter(claim("a", ttl=3600)))

    def test_who_runs_and_is_kept_is_not_revoked_by_the_store(
        self, backend: LockBackend, clock: ManualClock
    ) -> None:
        running(backend.enter(claim("a", wait=QUEUE, keep=True), b"a"))

        reply = backend.cancel("key", "a")

        assert (reply.verdict, reply.wakes) == (False, ())
        clock.advance(10)
        assert backend.sweep().wakes == (Wake("key", "a", b"a"),)

    def test_nothing_happens_to_who_does_not_wait(self, queue: LockBackend) -> None:
        before = queue.peek("key")

        assert queue.cancel("key", "unknown").verdict is False
        assert queue.cancel("other key", "b").verdict is False

        assert queue.peek("key") == before

    def test_a_place_is_not_revoked(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        backend.enter(claim("b", wait=PLACE))

        assert backend.cancel("key", "b").verdict is False

        assert [entry.task for entry in backend.peek("key").waiting] == ["b"]

    def test_who_waits_far_back_is_revoked_too(self, backend: LockBackend) -> None:
        running(backend.enter(claim("a")))
        tasks = [f"task {n}" for n in range(2 * WINDOW)]
        park(backend, *tasks)

        assert woken(backend.cancel("key", tasks[-1])) == tasks[-1:]

        assert [entry.task for entry in backend.peek("key").waiting] == tasks[:-1]
        assert backend.peek("key").parked == 2 * WINDOW - 1

    @pytest.mark.parametrize("task_id", ODD_IDS)
    def test_a_waiting_message_is_found_by_its_task_id_and_no_other_is(
        self, backend: LockBackend, task_id: str
    ) -> None:
        others = [other for other in ("a", "b", "abc", "axc", "a:b:c", "ab") if other != task_id]
        running(backend.enter(claim("holder")))
        park(backend, *(f"{each}:0:0" for each in [task_id, *others]))

        assert backend.parked([task_id]) == [("key", f"{task_id}:0:0")]

    def test_a_task_id_is_found_on_every_key_and_in_every_attempt(
        self, backend: LockBackend
    ) -> None:
        keys = ["key", "a{b}c", "}{", "{{)", "", "ключ", "a:state"]
        for key in keys:
            running(backend.enter(claim("holder", key=key)))
            park(backend, "a:0:0", "b:0:0", "a:1:2", key=key)

        expected = sorted((key, task) for key in keys for task in ("a:0:0", "a:1:2"))
        assert sorted(backend.parked(["a"])) == expected

    def test_several_tasks_are_found_by_one_look(self, backend: LockBackend) -> None:
        for key in ("one", "other"):
            running(backend.enter(claim("holder", key=key)))
            park(backend, "a:0:0", f"b of {key}:0:0", f"c of {key}:0:0", key=key)

        found = backend.parked(["a", "b of one", "c of other", "unknown"])

        expected = [("one", "a"), ("one", "b of one"), ("other", "a"), ("other", "c of other")]
        assert sorted(found) == [(key, f"{task_id}:0:0") for key, task_id in expected]
        assert backend.parked([]) == []

    def test_a_message_is_found_until_somebody_has_answered_its_call(
        self, backend: LockBackend
    ) -> None:
        running(backend.enter(claim("holder")))
        assert backend.parked(["a"]) == []
        park(backend, "a:0:0")
        backend.leave(claim("holder"), Outcome.DONE)
        assert backend.parked(["a"]) == [("key", "a:0:0")]

        running(backend.enter(claim("a:0:0", wait=QUEUE)))

        assert backend.parked(["a"]) == []

    def test_a_place_is_not_found_among_the_messages(self, backend: LockBackend) -> None:
        running(backend.enter(claim("holder")))
        backend.enter(claim("a:0:0", wait=PLACE))
        park(backend, "b:0:0")

        assert backend.parked(["a"]) == []

    def test_every_message_in_a_long_queue_is_found(self, backend: LockBackend) -> None:
        task_ids = [f"task {n}" for n in range(500)]
        tasks = [f"{task_id}:0:0" for task_id in task_ids]
        running(backend.enter(claim("holder")))
        park(backend, *tasks)

        assert sorted(backend.parked(task_ids)) == sorted(("key", task) for task in tasks)
