"""What several processes do to one queue, and what is left when a process or a client has gone."""

from __future__ import annotations

from typing import Any

from celery_dlock.backends.base import LockBackend, Wake
from celery_dlock.core.state import Busy, Cause, Ending, Outcome, Park, Run
from celery_dlock.testing.clock import ManualClock
from celery_dlock.testing.contract.burying import call_in_vain, die
from celery_dlock.testing.contract.processes import (
    SPAWN,
    Recipe,
    SharedStore,
    answer,
    child,
    enter_and_die,
)
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    ENQUEUE,
    QUEUE,
    claim,
    park,
    running,
    woken,
)

KEYS = 30


def obey(pipe: Any, recipe: Recipe) -> None:
    """In a child: carry out each list of operations, and answer with what the store answered."""
    backend = recipe.build()
    pipe.send("ready")
    while (orders := pipe.recv()) is not None:
        pipe.send([getattr(backend, name)(*args) for name, *args in orders])
    backend.close()


def both(recipe: Recipe, orders: list[tuple[Any, ...]]) -> list[list[Any]]:
    """What two processes are answered that carry out the same *orders* at the same time."""
    with child(SPAWN, obey, recipe) as one, child(SPAWN, obey, recipe) as other:
        pipes = (one, other)
        assert [answer(pipe) for pipe in pipes] == ["ready", "ready"]
        for pipe in pipes:
            pipe.send(orders)
        return [answer(pipe) for pipe in pipes]


class Survivors(SharedStore):
    def test_the_message_of_a_killed_process_is_called_when_its_lease_has_ended(
        self, backend: LockBackend, recipe: Recipe, clock: ManualClock
    ) -> None:
        with child(SPAWN, enter_and_die_keeping, recipe) as pipe:
            assert isinstance(answer(pipe), Run)
        assert backend.sweep().wakes == ()
        clock.advance(10)

        unchanged = backend.sweep().wakes == (Wake("key", "a", ANY_BYTES),)
        assert unchanged

    def test_kept_published_and_dead_messages_survive_the_object_that_left_them(
        self, backend: LockBackend, recipe: Recipe, clock: ManualClock
    ) -> None:
        die(backend, clock, "dead", key="dead", message=ANY_BYTES)
        running(backend.enter(claim("kept", key="kept", wait=QUEUE, keep=True), ANY_BYTES))
        for task in ("first", "published"):
            backend.enter(claim(task, key="published", wait=ENQUEUE), ANY_BYTES)
        backend.cancel("published", "published")
        burials = backend.dead()
        backend.close()

        new = recipe.build()

        unchanged = new.dead() == burials
        assert unchanged
        clock.advance(10)
        wakes = {wake.task: wake for wake in new.sweep().wakes}
        assert wakes.keys() == {"kept", "first", "published"}
        unchanged = all(wake.message == ANY_BYTES for wake in wakes.values())
        assert unchanged
        assert wakes["published"].ending is Ending.REVOKED
        assert woken(new.replay("dead", "dead")) == ["dead"]
        assert backend.dead() == []
        new.close()

    def test_a_reservation_holds_for_every_process(
        self, backend: LockBackend, recipe: Recipe
    ) -> None:
        running(backend.enter(claim("a:0:0")))
        backend.leave(claim("a:0:0", successor="a:1:0"), Outcome.OVER)

        with child(SPAWN, obey, recipe) as pipe:
            answer(pipe)
            pipe.send([("enter", claim("b")), ("enter", claim("a:1:0"))])
            refused, taken = answer(pipe)

        assert refused.verdict == Busy(None, 0, 0)
        assert isinstance(taken.verdict, Run)

    def test_of_two_processes_one_puts_a_message_aside(
        self, backend: LockBackend, recipe: Recipe, clock: ManualClock
    ) -> None:
        keys = [f"key {number}" for number in range(KEYS)]
        for key in keys:
            running(backend.enter(claim("holder", key=key)))
            park(backend, "a", "b", key=key)
            backend.leave(claim("holder", key=key), Outcome.DONE)
            call_in_vain(backend, clock, key)

        answers = both(recipe, [("bury", key, "a", Cause.UNREADABLE) for key in keys])

        for one, other in zip(*answers, strict=True):
            assert {one.verdict, other.verdict} == {True, False}
            assert woken(one) + woken(other) == ["b"]
        assert sorted(burial.key for burial in backend.dead()) == sorted(keys)

    def test_of_two_processes_one_replays_a_dead_message(
        self, backend: LockBackend, recipe: Recipe, clock: ManualClock
    ) -> None:
        keys = [f"key {number}" for number in range(KEYS)]
        for key in keys:
            die(backend, clock, "a", key)

        answers = both(recipe, [("replay", key, "a") for key in keys])

        for one, other in zip(*answers, strict=True):
            assert {one.verdict, other.verdict} == {True, False}
            assert woken(one) + woken(other) == ["a"]
        assert backend.dead() == []

    def test_two_processes_that_sweep_call_each_kept_message_once(
        self, backend: LockBackend, recipe: Recipe, clock: ManualClock
    ) -> None:
        keys = [f"key {number}" for number in range(KEYS)]
        for key in keys:
            running(backend.enter(claim("a", key=key, wait=QUEUE, keep=True), b"m"))
        clock.advance(10)

        answers = both(recipe, [("sweep", 10)] * 4)

        called = [wake.key for swept in answers for each in swept for wake in each.wakes]
        assert sorted(called) == sorted(keys)

    def test_two_processes_that_publish_the_same_message_leave_it_once(
        self, backend: LockBackend, recipe: Recipe
    ) -> None:
        published = [("enter", claim("a", key=f"key {n}", wait=ENQUEUE), b"m") for n in range(KEYS)]

        answers = both(recipe, published)

        for one, other in zip(*answers, strict=True):
            assert [one.verdict, other.verdict].count(Park()) == 1
            assert woken(one) + woken(other) == ["a"]


def enter_and_die_keeping(pipe: Any, recipe: Recipe) -> None:
    """In a child: hold a key with the message kept, and be killed."""
    enter_and_die(pipe, recipe, claim("a", wait=QUEUE, keep=True), ANY_BYTES)
