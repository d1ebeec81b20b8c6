"""``Unique(on_duplicate="newest")``: one runs, and of those who wait the newest."""

from __future__ import annotations

import time
from typing import Any

import pytest

from celery_dlock import LockedTask, Queue, Unique, lock
from celery_dlock.core.events import Deduplicated, Skipped, TooLarge
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.locks.unique import UniqueClaims
from celery_dlock.ops.overview import lines_in_use
from celery_dlock.runtime import runtime
from tests.services.desk import Desk
from tests.services.unique import Make, saver, without_answer

pytestmark = pytest.mark.stores

KEY = "doc:7"
NEWEST = Unique(on_duplicate="newest")
Runs = list[Any]


@pytest.fixture
def make(desk: Desk) -> Make:
    return saver(desk, NEWEST)


def claim(desk: Desk, save: LockedTask) -> UniqueClaim | None:
    unique = save.lock_definition.unique
    assert unique is not None
    text = desk.store.swap(unique.name(("a",), {}), None, None, 0)
    return None if text is None else UniqueClaim.decode(text)


def texts(runs: Runs) -> list[str]:
    return [text for text, _ in runs]


@pytest.mark.every_store
def test_while_one_runs_the_newest_of_the_others_waits(desk: Desk, make: Make) -> None:
    waiting: list[Any] = []

    def calls_more(task: Any) -> None:
        if len(desk.ran) == 1:
            waiting.extend(save.delay(text) for text in "bcd")

    save = make(calls_more)
    first = save.delay("a")

    assert desk.deliver_all() == 2
    assert {result.id for result in waiting} == {waiting[0].id}
    assert [result.is_duplicate for result in waiting] == [False, True, True]
    assert desk.ran == [("a", first.id), ("d", waiting[0].id)]
    assert [event.living for event in desk.happened(Deduplicated)] == [waiting[0].id] * 2
    assert claim(desk, save) is None


@pytest.mark.parametrize(
    "policy", ["skip", "reschedule", Queue(), Queue(ordered="publish")], ids=repr
)
def test_it_keeps_its_place_at_the_key(desk: Desk, make: Make, policy: Any) -> None:
    save, other = make(on_contention=policy), make(name="other", unique=None, on_contention="queue")
    with lock(KEY, app=desk.app, timeout=0):
        first = save.delay("a")
        other.delay("other")
        desk.deliver()
        save.delay("b")
        assert desk.size() == 0

    desk.deliver_all()

    assert (texts(desk.ran), desk.ran[0][1]) == (["b", "other"], first.id)
    assert desk.happened(Skipped) == []


def test_what_was_woken_has_begun_and_is_no_duplicate_of_the_next(desk: Desk, make: Make) -> None:
    save = make()
    first = save.delay("a")
    assert desk.size() == 1

    second = save.delay("b")
    third = save.delay("c")

    assert (second.is_duplicate, third.id) == (False, second.id)
    desk.deliver_all()
    assert desk.ran == [("a", first.id), ("c", second.id)]
    assert claim(desk, save) is None


def test_calls_that_wait_at_another_key_are_replaced_there(desk: Desk, make: Make) -> None:
    save = make(unique=Unique(on_duplicate="newest", by="any"))
    with lock(KEY, app=desk.app, timeout=0):
        save.delay("a", 7)
        save.delay("b", 8)
        assert desk.size() == 0

    desk.deliver_all()

    assert texts(desk.ran) == ["b"]
    assert [*lines_in_use(desk.store)] == []


@pytest.mark.parametrize("how", [{"task_id": "mine"}, {"countdown": 60}], ids=repr)
def test_a_call_with_dependents_stays_as_it_is(desk: Desk, make: Make, how: dict[str, Any]) -> None:
    save = make()
    with lock(KEY, app=desk.app, timeout=0):
        save.delay("a")
        mine = save.apply_async(("b",), **how)
        save.delay("c")
        assert desk.size() == 1
    desk.deliver_all()

    assert ("b", mine.id) in desk.ran or "countdown" in how
    assert "c" in texts(desk.ran)
    assert "a" not in texts(desk.ran)


def test_a_publisher_that_died_before_it_parked_leaves_an_id_for_the_next(
    desk: Desk, make: Make
) -> None:
    save = make()
    unique = save.lock_definition.unique
    assert unique is not None
    dead = UniqueClaim("dead:0:0", "save", "web:1", time.time(), KEY)
    UniqueClaims(desk.store).newest(unique.name(("a",), {}), dead, 60, None)

    result = save.delay("b")

    assert result.id == dead.task_id
    desk.deliver_all()
    assert desk.ran == [("b", dead.task_id)]
    assert claim(desk, save) is None


def test_one_that_is_overtaken_does_not_replace_a_newer_one(desk: Desk, make: Make) -> None:
    save = make()
    newest = UniqueClaims.newest

    def overtaken(self: Any, *args: Any) -> Any:
        told = newest(self, *args)
        desk.patch.setattr(UniqueClaims, "newest", newest)
        save.delay("b")
        return told

    with lock(KEY, app=desk.app, timeout=0):
        desk.patch.setattr(UniqueClaims, "newest", overtaken)
        first = save.delay("a")

    desk.deliver_all()
    assert desk.ran == [("b", first.id)]


def test_who_meets_one_that_begins_meanwhile_waits_behind_it(desk: Desk, make: Make) -> None:
    save = make()
    first = save.delay("a")
    newest = UniqueClaims.newest

    def runs_meanwhile(self: Any, *args: Any) -> Any:
        told = newest(self, *args)
        desk.patch.setattr(UniqueClaims, "newest", newest)
        desk.deliver_all()
        return told

    desk.patch.setattr(UniqueClaims, "newest", runs_meanwhile)
    second = save.delay("b")

    desk.deliver_all()
    assert desk.ran == [("a", first.id), ("b", second.id)]
    assert claim(desk, save) is None


@pytest.mark.parametrize("lost", ["swap", "enter"])
def test_without_an_answer_it_goes_by_the_broker(desk: Desk, make: Make, lost: str) -> None:
    save = make()
    with desk.patch.context() as patch:
        patch.setattr(desk.store, lost, without_answer())
        save.delay("a")
        assert desk.size() == 1

    desk.deliver_all()
    assert texts(desk.ran) == ["a"]
    assert claim(desk, save) is None


@pytest.mark.parametrize("arrives", ["before", "after"])
@pytest.mark.parametrize("landed", [True, False])
def test_what_went_by_the_broker_does_not_run_in_place_of_a_newer_call(
    desk: Desk, make: Make, landed: bool, arrives: str
) -> None:
    """Of the older one nobody knows whether the store has it; both have one id."""
    backend = desk.store
    save = make()
    with lock(KEY, app=desk.app, timeout=0):
        with desk.patch.context() as patch:
            patch.setattr(backend, "enter", without_answer(backend.enter if landed else None))
            save.delay("a")
        older = desk.receive()
        newer = save.delay("b")
    if arrives == "after":
        desk.deliver_all()
    desk.run(older)

    desk.deliver_all()
    assert desk.ran == [("b", newer.id)]
    assert claim(desk, save) is None


@pytest.mark.parametrize("largest", [100, 1_000_000])
def test_nor_where_the_newer_one_was_woken_already(desk: Desk, make: Make, largest: int) -> None:
    save, backend = make(), desk.store
    with desk.patch.context() as patch:
        patch.setattr(backend, "largest_message", largest)
        if largest > 100:
            patch.setattr(backend, "enter", without_answer())
        older = save.delay("a")
        patch.undo()
        newer = save.delay("b")
        assert (newer.id, desk.size()) == (older.id, 2)
        patch.setattr(backend, "largest_message", largest)
        first, second = desk.receive(), desk.receive()
        for message in (first, second):
            desk.run(message)

    desk.deliver_all()
    assert desk.ran == [("b", newer.id)]


def test_one_too_large_that_has_to_wait_runs_all_the_same(desk: Desk, make: Make) -> None:
    """It has a place in the store, and no message. The simulation found that it was dropped."""
    desk.patch.setattr(desk.store, "largest_message", 100)
    save = make()
    with lock(KEY, app=desk.app, timeout=0):
        sent = save.delay("a")
        refused = desk.receive()
        desk.run(refused)

    desk.deliver_all()
    assert desk.ran == [("a", sent.id)]


def test_one_too_large_is_overtaken_in_the_moment_in_which_it_begins(
    desk: Desk, make: Make
) -> None:
    save, backend = make(), desk.store
    message, largest = backend.message, backend.largest_message

    def overtaken(*asked: Any) -> Any:
        seen = message(*asked)
        desk.patch.setattr(backend, "message", message)
        with desk.patch.context() as patch:
            patch.setattr(backend, "largest_message", largest)
            save.delay("b")
        return seen

    desk.patch.setattr(backend, "largest_message", 100)
    older = save.delay("a")
    desk.patch.setattr(backend, "message", overtaken)

    desk.deliver_all()
    assert desk.ran == [("a", older.id)]


def test_the_newest_is_not_lost_behind_one_at_the_broker(desk: Desk, make: Make) -> None:
    """Which the store could not take: nobody can replace that one, which is dropped instead."""
    save = make()
    with desk.patch.context() as patch:
        patch.setattr(desk.store, "largest_message", 100)
        save.delay("a")
    assert (desk.size(), len(desk.happened(TooLarge))) == (1, 1)

    with lock(KEY, app=desk.app, timeout=0):
        save.delay("b")
        desk.deliver()

    desk.deliver_all()
    assert texts(desk.ran)[-1] == "b"
    assert claim(desk, save) is None


def test_one_too_large_replaces_nothing(desk: Desk, make: Make) -> None:
    save = make()
    with lock(KEY, app=desk.app, timeout=0):
        first = save.delay("a")
        with desk.patch.context() as patch:
            patch.setattr(desk.store, "largest_message", 100)
            assert save.delay("b").id != first.id

    desk.deliver_all()
    assert sorted(texts(desk.ran)) == ["a", "b"]


def test_one_cancelled_while_it_waits_makes_way(desk: Desk, make: Make) -> None:
    save, here = make(), runtime(desk.app)
    with lock(KEY, app=desk.app, timeout=0):
        first = save.delay("a")
        ((key, task),) = here.backend.parked([first.id])
        here.wake(here.backend.cancel(key, task).wakes)
        second = save.delay("b")
        assert second.id != first.id
        desk.deliver()
        assert first.status == "REVOKED"

    desk.deliver_all()
    assert desk.ran == [("b", second.id)]
    assert claim(desk, save) is None


def test_a_retry_is_neither_replaced_nor_ends_the_claim_of_the_next(desk: Desk, make: Make) -> None:
    def once_more(task: Any) -> None:
        if len(desk.ran) == 1:
            save.delay("b")
            raise task.retry(countdown=0)

    save = make(once_more)
    save.delay("a")

    desk.deliver_all()

    assert sorted(texts(desk.ran)) == ["a", "a", "b"]
    assert claim(desk, save) is None
