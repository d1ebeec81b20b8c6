"""What waits is held as the newest one says that runs: a deploy changes it while tasks wait."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from celery_dlock.core.state import WINDOW, Drop, Ending, Park, Reason, Run
from celery_dlock.stores.base import Reply, Wake
from celery_dlock.testing.contract.words import QUEUE, SHARED, woken
from tests.contract.key import Key, KeyTests, message_of

#: How a version of the task ``work`` holds the key, and how many hold it together then.
WORK: dict[str, Any] = {"name": "work", "entry": 1}
OTHER: dict[str, Any] = {"name": "other", "entry": 1}
ALONE: dict[str, Any] = {}
THREE: dict[str, Any] = {"limit": 3}
READS: dict[str, Any] = {"mode": SHARED}

#: So many that the end of the queue is not seen from its head.
MANY = [f"task {n}" for n in range(WINDOW + 8)]

CHANGES = [
    pytest.param(ALONE, THREE, id="alone to a limit"),
    pytest.param({"limit": 1}, THREE, id="a limit raised from 1"),
    pytest.param(THREE, {"limit": 1}, id="a limit lowered to 1"),
    pytest.param(THREE, ALONE, id="a limit to alone"),
    pytest.param(ALONE, READS, id="alone to shared"),
    pytest.param(READS, ALONE, id="shared to alone"),
    pytest.param(READS, THREE, id="shared to a limit"),
    pytest.param(THREE, READS, id="a limit to shared"),
]


def plays(key: Key, called: list[str], **terms: Any) -> tuple[list[str], list[int]]:
    """Have who is *called* ask on these *terms*, and whoever is called by that, until none is left.

    In which order they left, and how many ran each time when nobody was on the way.
    """
    on_the_way, running = deque(called), deque[str]()
    left, together = list[str](), list[int]()
    while on_the_way or running:
        if on_the_way:
            task = on_the_way.popleft()
            reply = key.enter(task, wait=QUEUE, **terms)
            assert isinstance(reply.verdict, Run | Park)
            running += [task] if isinstance(reply.verdict, Run) else []
            on_the_way += woken(reply)
            continue
        together.append(len(running))
        left.append(running.popleft())
        on_the_way += key.leaves(left[-1], **terms)
    return left, together


class Deploying(KeyTests):
    """A deploy changes how the entry of a lock is held, while tasks wait by it."""

    @pytest.mark.parametrize(("old", "new"), CHANGES)
    def test_all_who_wait_are_held_as_the_newest_one_is(
        self, key: Key, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        key.runs("first")
        key.parks(*MANY, **WORK, **old)

        left, together = plays(key, key.leaves("first"), **WORK, **new)

        assert sorted(left) == sorted(MANY)
        if new == READS:
            assert max(together) >= WINDOW
        else:
            most = new.get("limit", 1)
            assert together == [min(most, waiting) for waiting in range(len(MANY), 0, -1)]

    def test_each_of_two_tasks_that_share_a_key_speaks_for_its_own(self, key: Key) -> None:
        key.runs("old", **WORK)
        for n in range(6):
            key.parks(f"work {n}", **WORK)
            key.parks(f"other {n}", **OTHER)
        key.leaves("old", **WORK)

        assert key.enter("work 0", wait=QUEUE, **WORK, **THREE).wakes == ()
        assert key.leaves("work 0", **WORK, **THREE) == ["other 0"]

        assert woken(key.enter("other 0", wait=QUEUE, **OTHER, **THREE)) == ["work 1", "other 1"]

    @pytest.mark.parametrize(
        ("reads", "writes"),
        [
            (WORK, OTHER),
            (WORK, {"name": "work", "entry": 2}),
            (WORK, {"name": "work"}),
            ({"name": "lock()"}, {"name": "lock()"}),
        ],
        ids=["of another task", "of another entry", "of none", "of blocks"],
    )
    def test_a_reader_makes_no_reader_of_who_waits_by_something_else(
        self, key: Key, reads: dict[str, Any], writes: dict[str, Any]
    ) -> None:
        key.runs("r0", "r1", mode=SHARED, **reads)
        key.parks("w0", "w1", **writes)
        key.parks("r2", "r3", mode=SHARED, **reads)

        assert key.leaves("r0", mode=SHARED, **reads) == []
        assert key.leaves("r1", mode=SHARED, **reads) == ["w0"]
        key.runs("w0", wait=QUEUE, **writes)
        assert key.leaves("w0", **writes) == ["w1"]
        key.runs("w1", wait=QUEUE, **writes)
        assert key.leaves("w1", **writes) == ["r2", "r3"]

    def test_one_that_asks_for_more_than_is_free_is_not_called_in_vain_again(
        self, key: Key
    ) -> None:
        key.runs("a", "b", "c", **WORK, **THREE)
        key.parks("d", "e", **WORK, **THREE)
        assert key.leaves("a", **WORK, **THREE) == ["d"]
        assert key.asks("d", wait=QUEUE, **WORK) == Park()

        assert key.leaves("b", **WORK, **THREE) == []
        assert key.leaves("c", **WORK, **THREE) == ["d"]

        key.runs("d", wait=QUEUE, **WORK)
        assert key.leaves("d", **WORK) == ["e"]

    def test_the_newest_one_decides_whether_somebody_makes_room(self, key: Key) -> None:
        key.runs("a", **WORK)
        key.parks("b", "c", **WORK)
        newest = {"wait": QUEUE, "max_waiting": 2, **WORK}
        assert key.refuses("d", **newest).full

        reply = key.enter("d", drop_oldest=True, **newest)

        assert reply == Reply(Park(), (Wake("key", "b", message_of("b"), Ending.DROPPED),))
        assert key.asks("d", **newest) == Drop(Reason.WAITING)

    def test_calls_with_other_keys_fill_no_queue_and_make_no_room(self, key: Key) -> None:
        key.runs("a", **WORK)
        key.parks("b", keyset="b", **WORK)
        key.parks("o", **OTHER)
        few = {"wait": QUEUE, "max_waiting": 1, "keyset": "c", **WORK}

        assert key.enter("c", **few) == Reply(Park())
        assert key.refuses("d", **few).full
        reply = key.enter("d", drop_oldest=True, **few)

        assert (reply.verdict, woken(reply)) == (Park(), ["c"])
        assert key.waiting == ["b", "o", "d"]

    def test_behind_those_that_are_seen_every_message_counts(self, key: Key) -> None:
        key.runs("a", **WORK)
        key.parks(*MANY, **OTHER)
        beyond = len(MANY) - WINDOW

        assert key.refuses("b", wait=QUEUE, max_waiting=beyond, **WORK).full
        assert key.asks("b", wait=QUEUE, max_waiting=beyond + 1, **WORK) == Park()
