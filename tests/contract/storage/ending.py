"""Messages that wait are found by the id of their task, whatever it is made of."""

from __future__ import annotations

from celery_dlock.testing.contract.words import PLACE, QUEUE
from tests.contract.key import Key, KeyTests

ODD_IDS = ["a*", "a?c", "[ab]", "a\\b", "^a-c]", "задача \U0001f511", "a:b", "a{b}", "", "a\nb"]
OTHERS = ["a", "b", "abc", "axc", "a:b:c", "ab"]
KEYS = ["key", "a{b}c", "}{", "{{)", "", "ключ", "a:state"]


class Finding(KeyTests):
    """Revoked: a task whose message waits is found by its id, and woken to its end."""

    def test_a_waiting_message_is_found_by_its_task_id_and_no_other_is(self, key: Key) -> None:
        key.runs("holder")
        key.parks(*(f"{task_id}:0:0" for task_id in [*ODD_IDS, *OTHERS]))

        for task_id in ODD_IDS:
            assert key.backend.parked([task_id]) == [("key", f"{task_id}:0:0")]

    def test_task_ids_are_found_on_every_key_and_in_every_attempt(self, key: Key) -> None:
        tasks = ("a:0:0", "b:0:0", "a:1:2", "c:0:0")
        for name in KEYS:
            one = Key(key.backend, key.clock, name)
            one.runs("holder")
            one.parks(*tasks)

        for ids in (["a"], ["a", "c", "unknown"], []):
            found = key.backend.parked(ids)
            expected = [(name, task) for name in KEYS for task in tasks if task[0] in ids]
            assert sorted(found) == sorted(expected)

    def test_a_message_is_found_until_somebody_has_answered_its_wake(self, key: Key) -> None:
        key.runs("holder")
        assert key.backend.parked(["a"]) == []
        key.parks("a:0:0")
        key.refuses("b:0:0", wait=PLACE)
        key.leaves("holder")
        assert key.backend.parked(["a", "b"]) == [("key", "a:0:0")]  # a place is no message

        key.runs("a:0:0", wait=QUEUE)

        assert key.backend.parked(["a"]) == []

    def test_every_message_in_a_long_queue_is_found(self, key: Key) -> None:
        task_ids = [f"task {n}" for n in range(500)]
        tasks = [f"{task_id}:0:0" for task_id in task_ids]
        key.runs("holder")
        key.parks(*tasks)

        assert sorted(key.backend.parked(task_ids)) == sorted(("key", task) for task in tasks)
