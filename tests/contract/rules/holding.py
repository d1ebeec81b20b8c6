"""More than one holder at once: readers, and the slots of a limit."""

from __future__ import annotations

from celery_dlock.core.state import Busy, Outcome, Park
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract.words import (
    PLACE,
    QUEUE,
    SHARED,
    StoreUnderTest,
    claim,
    park,
    running,
    woken,
)


class Sharing(StoreUnderTest):
    """More than one at once: readers together, and the slots of ``limit=N``."""

    def test_readers_hold_the_key_together(self, backend: LockBackend) -> None:
        for task in "abc":
            running(backend.enter(claim(task, mode=SHARED)))

        assert {h.task for h in backend.peek("key").holders} == set("abc")

    def test_a_writer_does_not_join_a_reader(self, backend: LockBackend) -> None:
        backend.enter(claim("reader", mode=SHARED))

        assert isinstance(backend.enter(claim("writer")).verdict, Busy)

    def test_a_reader_does_not_join_a_writer(self, backend: LockBackend) -> None:
        backend.enter(claim("writer"))

        assert isinstance(backend.enter(claim("reader", mode=SHARED)).verdict, Busy)

    def test_a_writer_waits_for_the_last_reader(self, backend: LockBackend) -> None:
        readers = [claim(task, mode=SHARED) for task in "ab"]
        for reader in readers:
            backend.enter(reader)

        backend.leave(readers[0], Outcome.OVER)
        assert isinstance(backend.enter(claim("writer")).verdict, Busy)
        backend.leave(readers[1], Outcome.OVER)
        running(backend.enter(claim("writer")))

    def test_a_reader_that_leaves_releases_nothing_of_another(self, backend: LockBackend) -> None:
        for task in "ab":
            backend.enter(claim(task, mode=SHARED))

        for _ in range(2):
            backend.leave(claim("a", mode=SHARED), Outcome.OVER)

        assert [h.task for h in backend.peek("key").holders] == ["b"]

    def test_a_waiting_writer_is_not_starved_by_later_readers(self, backend: LockBackend) -> None:
        backend.enter(claim("early", mode=SHARED))
        backend.enter(claim("writer", wait=PLACE))

        assert isinstance(backend.enter(claim("late", mode=SHARED)).verdict, Busy)

        backend.leave(claim("early", mode=SHARED), Outcome.OVER)
        running(backend.enter(claim("writer", wait=PLACE)))

    def test_a_parked_writer_is_not_starved_by_later_readers(self, backend: LockBackend) -> None:
        early = claim("early", mode=SHARED)
        backend.enter(early)
        park(backend, "writer")

        late = claim("late", mode=SHARED, wait=QUEUE)
        assert backend.enter(late, b"late").verdict == Park()

        assert woken(backend.leave(early, Outcome.OVER)) == ["writer"]

    def test_parked_readers_are_woken_together_and_up_to_the_next_writer(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("writer"))
        park(backend, "r1", "r2", mode=SHARED)
        park(backend, "second writer")
        park(backend, "r3", mode=SHARED)

        assert woken(backend.leave(claim("writer"), Outcome.OVER)) == ["r1", "r2"]

    def test_a_limit_gives_each_holder_a_slot_of_its_own(self, backend: LockBackend) -> None:
        slots = [running(backend.enter(claim(task, limit=3))).slot for task in "abc"]

        assert slots == [0, 1, 2]
        assert isinstance(backend.enter(claim("d", limit=3)).verdict, Busy)

    def test_a_slot_that_was_left_is_given_to_the_next(self, backend: LockBackend) -> None:
        for task in "abc":
            backend.enter(claim(task, limit=3))
        backend.leave(claim("b", limit=3), Outcome.OVER)

        assert running(backend.enter(claim("d", limit=3))).slot == 1
        assert isinstance(backend.enter(claim("e", limit=3)).verdict, Busy)

    def test_leaving_a_slot_twice_makes_room_once(self, backend: LockBackend) -> None:
        for task in "ab":
            backend.enter(claim(task, limit=2))
        for _ in range(2):
            backend.leave(claim("a", limit=2), Outcome.OVER)

        running(backend.enter(claim("c", limit=2)))
        assert isinstance(backend.enter(claim("d", limit=2)).verdict, Busy)

    def test_a_limit_that_was_lowered_counts_while_both_versions_run(
        self, backend: LockBackend
    ) -> None:
        backend.enter(claim("old", limit=3))
        assert isinstance(backend.enter(claim("new", limit=1)).verdict, Busy)

        backend.leave(claim("old", limit=3), Outcome.OVER)
        backend.enter(claim("new", limit=1))
        assert isinstance(backend.enter(claim("old again", limit=3)).verdict, Busy)

    def test_a_free_slot_wakes_one_parked_task_and_two_wake_two(self, backend: LockBackend) -> None:
        for task in "ab":
            backend.enter(claim(task, limit=2))
        park(backend, "c", "d", "e", limit=2)

        assert woken(backend.leave(claim("a", limit=2), Outcome.OVER)) == ["c"]
        assert woken(backend.leave(claim("b", limit=2), Outcome.OVER)) == ["d"]
