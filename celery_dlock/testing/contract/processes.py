"""Several processes on one store: spawned ones, forked ones, and those that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.state import Busy, Claim, Drop, Left, Outcome, Reason, Run
from celery_dlock.stores.base import BackendOptions, LockBackend, Wake
from celery_dlock.stores.subprocess import through_helper
from celery_dlock.testing.contract.words import StoreUnderTest, claim, park, running
from celery_dlock.testing.project import ManualClock

#: Seconds for a child to say its next word, and to end after it was told to.
DEADLINE = 30.0
GRACE = 5.0

FORKSERVER, FORK = "forkserver", "fork"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How another process builds the store under test."""

    backend_class: type[LockBackend]
    url: str
    options: BackendOptions = field(default_factory=BackendOptions)

    def build(self) -> LockBackend:
        return self.backend_class.from_url(self.url, self.options)

    def build_to_fork(self) -> LockBackend:
        """For a process that forks once it has used the store."""
        if self.backend_class.forks:
            return self.build()
        return through_helper(self.backend_class, self.url, self.options)


@contextmanager
def child(method: str, work: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """Run *work* in a process of its own; the block has the other end of its pipe."""
    context: Any = multiprocessing.get_context(method)
    if method == FORKSERVER:
        context.set_forkserver_preload([__name__])  # or each child imports all of it once more
    here, there = context.Pipe()
    process: BaseProcess = context.Process(target=work, args=(there, *args))
    process.start()
    there.close()
    try:
        yield here
    finally:
        with suppress(OSError):  # it may be dead already
            here.send(None)
        process.join(GRACE)
        process.kill()
        process.join()


def answer(pipe: Any, within: float = DEADLINE) -> Any:
    """The child's next word. Raises :exc:`EOFError` if it died before it said one."""
    assert pipe.poll(within), "the other process said nothing"
    return pipe.recv()


def serve(pipe: Any, store: Recipe | LockBackend) -> None:
    """In a child: enter as it is told, until it is told nothing more."""
    backend = store.build() if isinstance(store, Recipe) else store
    while (mine := pipe.recv()) is not None:
        pipe.send(backend.enter(mine).verdict)
    backend.close()


def enter_and_die(pipe: Any, recipe: Recipe, mine: Claim, message: bytes | None = None) -> None:
    """In a child: hold a key and be killed without a word to the store."""
    pipe.send(recipe.build().enter(mine, message).verdict)
    os.kill(os.getpid(), signal.SIGKILL)


def compete(pipe: Any, recipe: Recipe, name: str, turns: int, folder: Path) -> None:
    """In a child: take the key *turns* times, and find out whether anybody was there."""
    backend, inside = recipe.build(), folder / "inside"
    tokens: list[tuple[int, str]] = []
    pipe.recv()
    deadline = time.monotonic() + DEADLINE
    while len(tokens) < turns and time.monotonic() < deadline:
        mine = claim(name, nonce=str(len(tokens)), ttl=3600)
        verdict = backend.enter(mine).verdict
        if isinstance(verdict, Run):
            inside.touch(exist_ok=False)
            tokens.append((verdict.token, name))
            inside.unlink()
            backend.leave(mine, Outcome.OVER)
    pipe.send(tokens)


class SharedStore(StoreUnderTest):
    """A store under test that other processes can build, too."""

    @pytest.fixture
    def recipe(self, url: str, options: BackendOptions) -> Recipe:
        return Recipe(self.backend_class, url, options)


class ProcessesTests(SharedStore):
    """Several processes on one store: spawned ones, forked ones, and one that is killed."""

    @pytest.fixture
    def forking(self, recipe: Recipe) -> Iterator[LockBackend]:
        """As a process has the store that forks later on."""
        backend = recipe.build_to_fork()
        yield backend
        backend.close()

    def test_the_state_survives_the_object_that_made_it(
        self, backend: LockBackend, recipe: Recipe
    ) -> None:
        running(backend.enter(claim("done")))
        backend.leave(claim("done"), Outcome.DONE)
        token = running(backend.enter(claim("a"))).token
        park(backend, "b")
        backend.close()

        new = recipe.build()

        assert new.enter(claim("done", "copy")).verdict == Drop(Reason.DONE)
        assert running(new.enter(claim("a"))).token == token
        reply = new.leave(claim("a"), Outcome.DONE)
        assert reply.wakes == (Wake("key", "b", b"message of b"),)
        assert running(new.enter(claim("b"))).token > token
        new.close()

    def test_a_second_process_sees_the_lock(self, backend: LockBackend, recipe: Recipe) -> None:
        token = running(backend.enter(claim("a"))).token

        with child(FORKSERVER, serve, recipe) as pipe:
            pipe.send(claim("b"))
            assert isinstance(answer(pipe), Busy)
            backend.leave(claim("a"), Outcome.OVER)
            pipe.send(claim("b"))
            assert answer(pipe).token > token
            assert isinstance(backend.enter(claim("c")).verdict, Busy)

    def test_a_forked_child_uses_the_store_of_its_parent(self, forking: LockBackend) -> None:
        running(forking.enter(claim("a")))

        with child(FORK, serve, forking) as pipe:
            pipe.send(claim("b"))
            assert isinstance(answer(pipe), Busy)
            pipe.send(claim("b", key="own"))
            assert isinstance(answer(pipe), Run)
            assert isinstance(forking.enter(claim("c", key="own")).verdict, Busy)

        assert isinstance(forking.leave(claim("a"), Outcome.OVER).verdict, Left)

    def test_a_killed_process_holds_its_lock_until_the_lease_ends(
        self, backend: LockBackend, recipe: Recipe, clock: ManualClock
    ) -> None:
        with child(FORKSERVER, enter_and_die, recipe, claim("a")) as pipe:
            dead = answer(pipe)

        assert isinstance(backend.enter(claim("b")).verdict, Busy)
        clock.advance(10)
        assert running(backend.enter(claim("b"))).token > dead.token

    def test_processes_that_compete_for_a_key_never_meet(
        self, recipe: Recipe, tmp_path: Path
    ) -> None:
        turns = 50
        with (
            child(FORKSERVER, compete, recipe, "a", turns, tmp_path) as one,
            child(FORKSERVER, compete, recipe, "b", turns, tmp_path) as other,
        ):
            for pipe in (one, other):
                pipe.send("go")
            tokens = sorted(answer(one) + answer(other))

        assert len(tokens) == 2 * turns
        assert all(earlier[0] < later[0] for earlier, later in pairwise(tokens))
