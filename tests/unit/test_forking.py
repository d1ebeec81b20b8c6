"""What belongs to one process is made anew in a forked child, and its parent's is left alone."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_dlock.forking import PerProcess, notice, tell
from tests.services.forked import alone, fork_unheard, in_a_forked_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Thing:
    """As a connection is; it says when it is let go."""

    def __init__(self) -> None:
        self.let_go = False

    def leave(self) -> None:
        self.let_go = True


def test_it_is_made_when_it_is_needed_and_once() -> None:
    things = PerProcess(Thing)
    assert things.made() is None
    first = things()
    assert things() is first
    assert things.made() is first


def test_threads_that_come_at_once_have_the_same_one() -> None:
    threads = 8
    barrier = threading.Barrier(threads)
    made: list[Thing] = []

    def make() -> Thing:
        made.append(Thing())
        return made[-1]

    things = PerProcess(make)

    def come(_: int) -> Thing:
        barrier.wait()
        return things()

    with ThreadPoolExecutor(threads) as pool:
        assert set(pool.map(come, range(threads))) == {things()}
    assert made == [things()]


def test_a_forked_child_has_its_own_and_keeps_its_parents_unused() -> None:
    things = PerProcess(Thing, Thing.leave)
    parents = things()
    watched = weakref.ref(parents)

    def child() -> None:
        nonlocal parents
        assert things.made() is None
        assert parents.let_go
        assert things() is not parents
        assert not things().let_go
        del parents
        gc.collect()
        assert watched() is not None

    in_a_forked_child(child)
    assert things() is parents
    assert not parents.let_go


def test_a_child_does_not_wait_for_who_was_making_it_at_the_fork() -> None:
    begins, goes_on = threading.Event(), threading.Event()

    def make() -> Thing:
        begins.set()
        goes_on.wait(30)
        return Thing()

    things = PerProcess(make)
    maker = threading.Thread(target=things)
    maker.start()
    begins.wait(30)

    def child() -> None:
        goes_on.set()
        things()

    in_a_forked_child(child)
    goes_on.set()
    maker.join()


def test_a_child_of_a_child_has_its_own_again() -> None:
    things = PerProcess(Thing, Thing.leave)
    first = things()

    def child() -> None:
        second = things()
        in_a_forked_child(lambda: _is_new(things, first, second))
        assert things() is second

    in_a_forked_child(child)


def _is_new(things: PerProcess[Thing], *before: Thing) -> None:
    assert things.made() is None
    assert things() not in before


def test_what_is_taken_is_the_callers_and_the_next_use_makes_another() -> None:
    things = PerProcess(Thing)
    assert things.take() is None
    first = things()
    assert things.take() is first
    assert things.take() is None
    assert things() is not first


def test_only_the_one_that_is_meant_is_taken() -> None:
    things = PerProcess(Thing)
    first = things()
    things.take()
    second = things()
    assert things.take(first) is None
    assert things.take(second) is second


def test_one_that_fails_in_the_child_keeps_no_other_from_leaving() -> None:
    def fail(thing: Thing) -> None:
        raise RuntimeError("a defect")

    all_things = [PerProcess(Thing, fail) for _ in range(3)]
    for things in all_things:
        things()

    def child() -> None:
        assert [things.made() for things in all_things] == [None] * 3

    in_a_forked_child(child)


def test_a_fork_that_python_did_not_hear_of_is_noticed() -> None:
    alone(_notices_a_fork)


def _notices_a_fork() -> None:
    things = PerProcess(Thing, Thing.leave)
    parents = things()

    def child() -> None:
        assert things.made() is parents  # nobody has said so
        notice()
        assert things.made() is None
        assert parents.let_go
        own = things()
        notice()
        assert things() is own

    notice()
    assert things() is parents
    in_a_forked_child(child, fork_unheard)
    assert things() is parents


def test_what_is_there_no_more_is_not_told() -> None:
    told: list[str] = []

    class Forked:
        def after_fork_in_child(self) -> None:
            told.append("in the child")

    here, gone = Forked(), Forked()
    tell(here)
    tell(gone)
    del gone
    gc.collect()

    def child() -> None:
        assert told == ["in the child"]

    in_a_forked_child(child)
    assert told == []
