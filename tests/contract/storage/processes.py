"""Several processes on one store: spawned ones, forked ones, and those that are killed."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any

from celery_dlock.core.operations import PutOnHold, Replay
from celery_dlock.core.state import Busy, Cause, Ending, Outcome, Park, Run
from celery_dlock.stores.base import LockBackend, Wake
from celery_dlock.testing.contract import processes as shipped
from celery_dlock.testing.contract.processes import (
    DEADLINE,
    FORK,
    FORKSERVER,
    Recipe,
    SharedStore,
    answer,
    child,
    enter_and_die,
    serve,
)
from celery_dlock.testing.contract.words import (
    ANY_BYTES,
    ENQUEUE,
    QUEUE,
    SECOND,
    claim,
    park,
    running,
    woken,
)
from celery_dlock.testing.project import ManualClock
from tests.contract.storage.dead_letters import die, wake_in_vain


def fork_while_busy(pipe: Any, recipe: Recipe, children: int) -> None:
    """In a child: fork again and again while a thread uses the store without a pause."""
    backend, stop = recipe.build_to_fork(), threading.Event()

    def be_busy() -> None:
        while not stop.is_set():
            backend.enter(claim("busy", key="busy"))
            backend.leave(claim("busy", key="busy"), Outcome.OVER)

    thread = threading.Thread(target=be_busy, daemon=True)
    thread.start()
    verdicts: list[Any] = []
    for number in range(children):
        store = backend if recipe.backend_class.forks else recipe
        with child(FORK, serve, store) as inner:
            inner.send(claim("a", key=f"key {number}"))
            verdicts.append(answer(inner, DEADLINE / 2))
    stop.set()
    thread.join()
    pipe.send(verdicts)


def tell_imports(pipe: Any, recipe: Recipe) -> None:
    """In a child: which modules are looked for as the store is used for the first time."""
    backend, found = recipe.build(), list[str]()

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event == "import":
            found.append(args[0])

    sys.addaudithook(hear)
    backend.enter(claim("a"))
    backend.leave(claim("a"), Outcome.OVER)
    backend.sweep()
    pipe.send(list(found))


class ProcessesTests(shipped.ProcessesTests):
    def test_a_forked_childs_lock_outlives_its_parents_connection(
        self, forking: LockBackend, recipe: Recipe
    ) -> None:
        forking.enter(claim("a"))

        with child(FORK, serve, forking) as pipe:
            pipe.send(claim("b", key="first"))
            assert isinstance(answer(pipe), Run)
            forking.close()
            pipe.send(claim("b", key="second"))
            assert isinstance(answer(pipe), Run)
            other = recipe.build()
            for key in ("first", "second"):
                assert isinstance(other.enter(claim("c", key=key)).verdict, Busy)
            other.close()

    def test_a_child_forked_while_a_thread_uses_the_store_can_use_it(self, recipe: Recipe) -> None:
        with child(FORKSERVER, fork_while_busy, recipe, 10) as pipe:
            verdicts = answer(pipe)

        assert [type(verdict) for verdict in verdicts] == [Run] * 10

    def test_nothing_is_imported_as_the_store_is_first_used(self, recipe: Recipe) -> None:
        """By a thread, as another one forks: the child would wait for that module for ever."""
        with child(FORKSERVER, tell_imports, recipe) as pipe:
            imported = answer(pipe)

        assert not (recipe.backend_class.forks and imported)


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
    with child(FORKSERVER, obey, recipe) as one, child(FORKSERVER, obey, recipe) as other:
        pipes = (one, other)
        assert [answer(pipe) for pipe in pipes] == ["ready", "ready"]
        for pipe in pipes:
            pipe.send(orders)
        return [answer(pipe) for pipe in pipes]


class Survivors(SharedStore):
    """What several processes do to one queue, and what is left when one of them has gone."""

    def test_the_message_of_a_killed_process_is_woken_when_its_lease_has_ended(
        self, backend: LockBackend, recipe: Recipe, clock: ManualClock
    ) -> None:
        with child(FORKSERVER, enter_and_die_keeping, recipe) as pipe:
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
        letters = backend.dead()
        backend.close()

        new = recipe.build()

        unchanged = new.dead() == letters
        assert unchanged
        clock.advance(10)
        wakes = {wake.task: wake for wake in new.sweep().wakes}
        assert wakes.keys() == {"kept", "first", "published"}
        unchanged = all(wake.message == ANY_BYTES for wake in wakes.values())
        assert unchanged
        assert wakes["published"].ending is Ending.REVOKED
        assert woken(new.apply(Replay("dead", "dead"))) == ["dead"]
        assert backend.dead() == []
        new.close()

    def test_a_hold_outlives_the_process_that_put_the_key_on_it(
        self, backend: LockBackend, recipe: Recipe
    ) -> None:
        by_the_store = replace(recipe, options=replace(recipe.options, clock=None))
        order = PutOnHold("key", "", "first", "ann", "why", 3_600 * SECOND)
        with child(FORKSERVER, obey, by_the_store) as pipe:
            answer(pipe)
            pipe.send([("apply", order)])
            (reply,) = answer(pipe)
            assert reply.verdict

        other = by_the_store.build()

        refused = other.enter(claim("a")).verdict
        assert isinstance(refused, Busy)
        assert refused.hold is not None
        assert refused.hold.who == "ann: why"
        assert other.apply(PutOnHold("key", "first", "", "", "", 0)).verdict
        assert isinstance(other.enter(claim("a")).verdict, Run)
        other.leave(claim("a"), Outcome.OVER)
        other.close()

    def test_of_two_processes_one_dead_letters_and_one_replays_a_message(
        self, backend: LockBackend, recipe: Recipe, clock: ManualClock
    ) -> None:
        keys = [f"key {number}" for number in range(KEYS)]
        for key in keys:
            running(backend.enter(claim("holder", key=key)))
            park(backend, "a", "b", key=key)
            backend.leave(claim("holder", key=key), Outcome.DONE)
            wake_in_vain(backend, clock, key)

        answers = both(recipe, [("dead_letter", key, "a", Cause.UNREADABLE) for key in keys])

        for one, other in zip(*answers, strict=True):
            assert {one.verdict, other.verdict} == {True, False}
            assert woken(one) + woken(other) == ["b"]
        assert sorted(letter.key for letter in backend.dead()) == sorted(keys)

        answers = both(recipe, [("apply", Replay(key, "a")) for key in keys])

        for one, other in zip(*answers, strict=True):
            assert {one.verdict, other.verdict} == {True, False}
        assert backend.dead() == []
        assert [backend.peek(key).parked for key in keys] == [1] * KEYS

    def test_two_processes_that_sweep_wake_each_kept_message_once(
        self, backend: LockBackend, recipe: Recipe, clock: ManualClock
    ) -> None:
        keys = [f"key {number}" for number in range(KEYS)]
        for key in keys:
            running(backend.enter(claim("a", key=key, wait=QUEUE, keep=True), b"m"))
        clock.advance(10)

        answers = both(recipe, [("sweep", 10)] * 4)

        keys_woken = [wake.key for swept in answers for each in swept for wake in each.wakes]
        assert sorted(keys_woken) == sorted(keys)

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
