"""Messages that wait are found by the id of their task, whatever it is made of."""

from __future__ import annotations

import pytest

from celery_dlock.core.state import Outcome
from celery_dlock.stores.base import LockBackend
from celery_dlock.testing.contract.words import PLACE, QUEUE, StoreUnderTest, claim, park, running

ODD_IDS = ["a*", "a?c", "[ab]", "a\\b", "^a-c]", "задача \U0001f511", "a:b", "a{b}", "", "a\nb"]


class Finding(StoreUnderTest):
    """Revoked: a task whose message waits is found by its id, and woken to its end."""

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

    def test_a_message_is_found_until_somebody_has_answered_its_wake(
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
